use super::*;
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};

mod fuzz;

const SECRET: &str = "s3/cr\"et+&<ü>=";

fn hidden(text: &str) -> String {
    Redactor::of([SECRET, "another-one"]).hide_in_text(text.to_owned())
}

fn each(text: &str, encode: impl Fn(char) -> String) -> String {
    text.chars().map(encode).collect()
}

fn units(letter: char) -> String {
    let mut units = [0; 2];
    let units = letter.encode_utf16(&mut units);
    units.iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn percent(letter: char) -> String {
    let mut bytes = [0; 4];
    let bytes = letter.encode_utf8(&mut bytes).bytes();
    bytes.map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn a_secret_is_found_in_every_encoding() {
    let json = serde_json::to_string(SECRET).unwrap();
    let inner = json.trim_matches('"');
    for form in [
        SECRET.to_owned(),
        "s3/cr\\\"et+\\u0026\\u003c\\u00fc\\u003e=".to_owned(),
        "s3\\/cr\\\"et\\u002B\\u0026<\\u00FC>\\u003d".to_owned(),
        inner.replace('/', "\\/"),
        "s3%2Fcr%22et%2B%26%3C%C3%BC%3E%3D".to_owned(),
        "s3/cr%22et%2b%26%3c%c3%bc%3e%3d".to_owned(),
        "s3/cr&quot;et+&amp;&lt;ü&gt;=".to_owned(),
        "s3&sol;cr&quot;et&plus;&amp;&lt;&uuml;&gt;&equals;".to_owned(),
        "s3&#47;cr&#034;et&#x2B;&#x000026;&LT;&#252;&#62;&#61;".to_owned(),
        each(SECRET, units),
        each(SECRET, percent),
        each(SECRET, |letter| format!("&#{};", u32::from(letter))),
        // These are encodings of encodings.
        each(SECRET, percent).replace('%', "%25"),
        each(SECRET, percent).replace('%', "%2525"),
        each(SECRET, units).replace('\\', "\\\\"),
        each(SECRET, percent).replace('%', "\\u0025"),
        each(SECRET, units).replace('\\', "%5C"),
        each(&each(SECRET, percent), units),
        STANDARD.encode(SECRET),
        STANDARD.encode(each(SECRET, units)),
        STANDARD.encode(STANDARD.encode(SECRET)),
        SECRET.bytes().map(|byte| format!("{byte:02x}")).collect(),
        SECRET.bytes().map(|byte| format!("{byte:02X}")).collect(),
    ] {
        let text = format!("you sent {form} and {form}.");
        let padding = text.matches("=.").count();
        let expected = match padding {
            0 => "you sent *** and ***.",
            _ => "you sent ***= and ***=.",
        };
        let found = hidden(&text);
        assert!(
            found == expected || found == "you sent *** and ***.",
            "{form}: {found}"
        );
    }
}

#[test]
fn base64_of_a_longer_text_is_found_wherever_the_secret_stands_in_it() {
    for before in ["", "a", "ab", "abc", "provost:"] {
        for after in ["", "x", "yz", "end of it"] {
            let text = format!("{before}{SECRET}{after}");
            let standard = STANDARD.encode(&text);
            let mut lines = String::new();
            for (at, letter) in standard.chars().enumerate() {
                if at > 0 && at % 7 == 0 {
                    lines.push_str("\r\n");
                }
                lines.push(letter);
            }
            for written in [
                standard.clone(),
                STANDARD_NO_PAD.encode(&text),
                URL_SAFE_NO_PAD.encode(&text),
                standard.replace('/', "\\/").replace('=', "\\u003d"),
                standard.replace('+', "%2B").replace('=', "%3D"),
                format!("x{standard}"),
                lines,
            ] {
                let found = hidden(&format!("<{written}>"));
                assert!(found.contains("***"), "{text}: {written}");
                // The rest belongs to the text around it.
                let rest = found.replace("***", "").replace("\\u003d", "");
                let rest = rest.trim_matches(['<', '>', 'x']);
                assert!(
                    rest.len() < (before.len() + after.len()) * 3 + 8,
                    "{text}: {found}"
                );
            }
        }
    }
}

#[test]
fn other_text_stays_as_it_is() {
    let redactor = Redactor::of([SECRET, "another-one"]);
    for text in [
        "",
        "s3/cr",
        "nothing here",
        "anotherone",
        "another%2Done%",
        "another-on%64",
        "YW5vdGhlci1vb",
        "%",
        "\\",
        "&",
        "another&#45;on&#102;",
        "{\"id\":\"0193f4f0-7d5e-7cc3-b5a1-1d2c3e4f5a6b\",\"text\":\"a\\nb\\u00e9\"}",
    ] {
        let is_secret = text == "another%2Done%";
        assert_eq!(redactor.finds(text.as_bytes()), is_secret, "{text}");
    }
    assert_eq!(Redactor::default().hide(b"anything"), None);
    assert_eq!(Redactor::of([]).hide(b"anything"), None);
}

#[test]
fn a_secret_that_looks_encoded_is_found_as_it_is_and_encoded() {
    for secret in [
        "ab%2Fcd%41x",
        "ab\\u0041cd\\",
        "nab\\ncd&amp;",
        "2Fabc%25%25",
        "a+b c+d e",
        "\\\\\\\\abc\\",
        "a%20b%2Bc%",
    ] {
        let redactor = Redactor::of([secret]);
        for form in [
            secret.to_owned(),
            serde_json::to_string(secret)
                .unwrap()
                .trim_matches('"')
                .to_owned(),
            each(secret, percent),
            each(secret, percent).replace('%', "%25"),
            each(secret, units),
            secret.replace('%', "%25"),
            secret.replace('&', "&amp;"),
            secret.replace('c', "\\u0063"),
        ] {
            for (before, after) in [
                ("", ""),
                ("\\", "\""),
                ("%", "%"),
                ("&", ";"),
                ("\\\\", "41"),
                ("100%25", "n"),
            ] {
                let text = format!("{before}{form}{after}");
                assert!(redactor.finds(text.as_bytes()), "{secret:?} in {text:?}");
            }
        }
    }
}

#[test]
fn utf_16_is_found_too() {
    let secret = "s3cret-one";
    let redactor = Redactor::of([secret]);
    let little: Vec<u8> = secret.bytes().flat_map(|byte| [byte, 0]).collect();
    assert!(redactor.finds(&little));
    assert!(redactor.finds(STANDARD.encode(&little).as_bytes()));
    let escaped = format!("\"{}\"", each(secret, |letter| format!("{letter}\\u0000")));
    assert_eq!(redactor.hide_in_text(escaped), "\"***\\u0000\"");
}

#[test]
fn a_letter_after_an_encoded_backslash_may_be_an_escape() {
    let mut left = Vec::new();
    for before in ["s3cr", "s3cr<x>", "s3cr\\x"] {
        let secret = format!("{before}\\é-longer");
        let redactor = Redactor::of([&*secret]);
        for form in [
            "%5c\\u00e9",
            "\\u{5c}\\xe9",
            "&#92;\\u00e9",
            "\\\\u00e9",
            "&#92;%C3%A9",
            "\\\\\\u00e9",
            "\\%C3%A9",
            "\\&eacute;",
            "%5c%5cu00e9",
            // These are encoded once more as JSON.
            "%5c\\\\u00e9",
            "\\\\u{5c}\\\\xe9",
            "&#92;\\\\u00e9",
            "\\\\\\\\u00e9",
        ] {
            let text = format!("you sent {before}{form}-longer.");
            if redactor.hide_in_text(text.clone()) != "you sent ***." {
                left.push(text);
            }
        }
    }
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_reading_begins_where_another_secret_seemed_to_begin() {
    let redactor = Redactor::of(["\\no-secret", "another-one", "thean\\no-secret"]);
    let ending = Redactor::of(["anot-n\\", "s3cr-anot-n%"]);
    assert!(ending.finds(b"s3cr-anot-n\\\\"));
    for before in ["", "a", "an", "anoth", "thea", "xthe"] {
        let text = format!("you sent {before}\\\\156o-secret");
        assert!(redactor.finds(text.as_bytes()), "{text}");
    }
}

#[test]
fn letters_beyond_ascii_are_found_in_utf_16_and_latin_1() {
    let mut left = Vec::new();
    for secret in ["s3crét-of-ü", "s3cr\u{20ac}t-\u{1f600}-\u{125c}-of-é"] {
        let redactor = Redactor::of([secret]);
        let mut forms: Vec<Vec<u8>> = vec![
            secret.encode_utf16().flat_map(u16::to_le_bytes).collect(),
            secret.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        ];
        let latin: Result<Vec<u8>, _> = secret
            .chars()
            .map(|letter| u32::from(letter).try_into())
            .collect();
        forms.extend(latin);
        for form in forms {
            let hex: String = form.iter().map(|byte| format!("{byte:02x}")).collect();
            let percent: String = form.iter().map(|byte| format!("%{byte:02x}")).collect();
            let base64 = STANDARD.encode(&form);
            for text in [&form, hex.as_bytes(), percent.as_bytes(), base64.as_bytes()] {
                let text = [b"you sent ", text].concat();
                if !redactor.finds(&text) {
                    left.push(String::from_utf8_lossy(&text).into_owned());
                }
            }
        }
    }
    assert_eq!(left, [""; 0]);
}

#[test]
fn rarer_encodings_are_found_too() {
    let secret = "s3cr+et=of-é";
    let redactor = Redactor::of([secret]);
    let hex = |between: &str| {
        let bytes: Vec<String> = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(between)
    };
    let mut left = Vec::new();
    for form in [
        each(secret, |letter| format!("\\U{:08X}", u32::from(letter))),
        secret.bytes().map(|byte| format!("\\{byte:03o}")).collect(),
        "s3cr\\053et=of-\\303\\251".to_owned(),
        "s3cr=2Bet=3Dof-=C3=A9".to_owned(),
        "s3cr=2Bet=3D=\r\nof-=C3=A9".to_owned(),
        secret.bytes().map(|byte| format!("={byte:02X}")).collect(),
        hex(":"),
        hex(" "),
        // A text that may be quoted-printable is read as plain text as well.
        format!("={}", hex("")),
    ] {
        let text = format!("you sent {form}.");
        if !redactor.finds(text.as_bytes()) {
            left.push(form);
        }
    }
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_longer_secret_is_hidden_whole_although_it_contains_another() {
    let redactor = Redactor::of(["s3cret-one", "s3cret-one-and-more"]);
    let text = "s3cret-one-and-more s3cret-one".to_owned();
    assert_eq!(redactor.hide_in_text(text), "*** ***");
}

#[test]
fn a_secret_that_is_cut_off_leaves_nothing_to_guess_from() {
    let redactor = Redactor::of(["s3cret-one"]);
    let start = |text: &str, most| {
        String::from_utf8(redactor.hide_in_start(text.as_bytes().to_vec(), most)).unwrap()
    };
    assert_eq!(start("you sent s3cret-on", 100), "you sent ");
    assert_eq!(start("you sent s3cret-one", 100), "you sent ***");
    assert_eq!(start("you sent s3c", 100), "you sent s3c");
    assert_eq!(start("you sent s3cret-one", 14), "you sent ***");
    assert_eq!(start("s3cret-one is mine", 6), "*** is");
    for cut in [
        "s3cre%74-o",
        "s3cre%",
        "s3cr%6",
        "s3cr\\u00",
        "s3cr&#00",
        "s3cr\\\\u0065t",
        "s3cr%256",
    ] {
        assert_eq!(start(&format!("you sent {cut}"), 100), "you sent ", "{cut}");
    }
    let encoded = STANDARD.encode("user:s3cret-one");
    for end in 11..20 {
        let left = start(&format!("you sent {}", &encoded[..end]), 100);
        assert!(left.len() <= "you sent dXNlcjpz".len() + 3, "{end}: {left}");
    }
}

#[test]
fn json_stays_json() {
    let redactor = Redactor::of(["12345678", "s3cret-one"]);
    let json = |text: &str| {
        let body = redactor.hide_in_body(text.as_bytes().to_vec());
        String::from_utf8(body).unwrap()
    };
    assert_eq!(json(r#"{"a":"x s3cret-one\n"}"#), r#"{"a":"x ***\n"}"#);
    assert_eq!(
        json(r#"{"pin":12345678,"a":"12345678"}"#),
        r#"{"pin":"***","a":"***"}"#
    );
    assert_eq!(
        json(r#"[-912345678.5e1,"\"s3cret-one"]"#),
        r#"["***","\"***"]"#
    );
    assert_eq!(json("12345678"), "\"***\"");
    assert_eq!(json(r#"{"a":1}"#), r#"{"a":1}"#);
}

/// The time must be linear also for a text that is made to be slow.
#[test]
fn the_work_grows_with_the_text_and_not_faster() {
    let of = |part: &str, length: usize| part.repeat(length / part.len() + 1);
    let (letters, periods) = ("a".repeat(500), "ab".repeat(300));
    let secrets = [
        "aaaaaaaa",
        &*letters,
        &*periods,
        "a%25a%25a%25a%25",
        "%25252525%2525",
        "&#00000000;&#0000",
        "\\\\\\\\\\\\\\\\u005c",
        "00000000000000",
        "\\u005c\\u005c",
    ];
    let redactor = Redactor::of(secrets);
    let nested = STANDARD.encode(STANDARD.encode(of("a%2525", 30_000)));
    for text in [
        "a",
        "ab",
        "a%61",
        "%25",
        "%252525",
        "%",
        "&#0",
        "&#00000000",
        "&#000000097;",
        "&",
        "&amp;",
        "&amp",
        "\\",
        "\\\\",
        "\\u005c",
        "\\u005c\\u005c",
        "\\n",
        "a\\",
        "%5C",
        "0",
        "00\n",
        "a%2561%61",
        "\0",
        "\0a",
        "YWFh",
        "a&#97",
        &nested,
    ] {
        for length in [16 << 10, 64 << 10] {
            let text = of(text, length);
            let steps = redactor.steps(text.as_bytes());
            let each = steps / text.len() as u64;
            assert!(
                each < 120,
                "{each} steps a byte for {} of {:?}",
                text.len(),
                &text[..20]
            );
        }
    }
}
