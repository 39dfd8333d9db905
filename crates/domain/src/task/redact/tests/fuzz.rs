//! Tests with canaries in random encodings, and with decoys.

use std::time::{Duration, Instant};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD},
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::super::{Redactor, named_letters::NAMED_LETTERS};

const LETTERS: &str = "abcdefgnortuxABCDEF0123456789+/=-_.~!$%&'()*,;:@?#[]{}<>|\\\"^` üé€😀";

fn random_text(rng: &mut StdRng, lengths: std::ops::Range<usize>) -> String {
    let letters: Vec<char> = LETTERS.chars().collect();
    let length = rng.random_range(lengths);
    (0..length).map(|_| *letters.choose(rng).unwrap()).collect()
}

/// Returns a text with clusters of letters that mean something together in an encoding, or take several bytes.
fn clustered_text(rng: &mut StdRng) -> String {
    let clusters: Vec<char> = "\\\\\\\"\"%%&&'/=üé€😀u".chars().collect();
    let mut text = random_text(rng, 4..12);
    for _ in 0..rng.random_range(1..4) {
        let length = rng.random_range(2..5);
        text.extend((0..length).map(|_| *clusters.choose(rng).unwrap()));
        text.push_str(&random_text(rng, 1..6));
    }
    text
}

/// Returns one letter in an encoding that a service may use.
fn encoded(rng: &mut StdRng, letter: char) -> String {
    let number = u32::from(letter);
    let mut bytes = [0; 4];
    let bytes = letter.encode_utf8(&mut bytes).as_bytes().to_vec();
    let mut units = [0; 2];
    let units = letter.encode_utf16(&mut units).to_vec();
    let named: Vec<_> = NAMED_LETTERS
        .iter()
        .filter(|(_, named)| *named == letter)
        .collect();
    match rng.random_range(0..13) {
        0 => bytes.iter().map(|byte| format!("%{byte:02x}")).collect(),
        1 => bytes.iter().map(|byte| format!("%{byte:02X}")).collect(),
        2 => units.iter().map(|unit| format!("\\u{unit:04x}")).collect(),
        3 => units.iter().map(|unit| format!("\\u{unit:04X}")).collect(),
        4 => format!("&#{number};"),
        5 => format!("&#{number:0>width$};", width = rng.random_range(1..30)),
        6 => format!("&#x{number:0>width$x};", width = rng.random_range(1..9)),
        7 => format!("&#X{number:X};"),
        8 if !named.is_empty() => format!("&{};", named.choose(rng).unwrap().0),
        9 if "/\"\\".contains(letter) => format!("\\{letter}"),
        10 if letter == ' ' => "+".to_owned(),
        11 => format!("\\U{number:08x}"),
        12 => bytes.iter().map(|byte| format!("\\{byte:03o}")).collect(),
        _ => bytes.iter().map(|byte| format!("%{byte:02x}")).collect(),
    }
}

/// Returns a text that is encoded as a whole in one way.
fn whole(rng: &mut StdRng, text: &str) -> String {
    match rng.random_range(0..7) {
        0 => {
            let json = serde_json::to_string(text).unwrap();
            json[1..json.len() - 1].to_owned()
        }
        1 => text.bytes().map(|byte| format!("%{byte:02X}")).collect(),
        2 => text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('"', "&quot;"),
        3 => text.replace('%', "%25"),
        4 => text
            .replace('\\', "\\\\")
            .replace('/', "\\/")
            .replace('"', "\\u0022"),
        5 => text
            .replace('\\', "\\\\")
            .replace('%', "\\u0025")
            .replace('&', "\\u0026"),
        _ => text.to_owned(),
    }
}

fn in_digits(rng: &mut StdRng, text: &str) -> String {
    match rng.random_range(0..6) {
        0 => STANDARD.encode(text),
        1 => STANDARD_NO_PAD.encode(text),
        2 => URL_SAFE.encode(text),
        3 => URL_SAFE_NO_PAD.encode(text),
        4 => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
        _ => text.bytes().map(|byte| format!("{byte:02X}")).collect(),
    }
}

/// Returns a text in which some letters are encoded, each in its own way.
fn mixed(rng: &mut StdRng, text: &str, share: f64) -> String {
    let letters = text.chars().map(|letter| match rng.random_bool(share) {
        true => encoded(rng, letter),
        false => letter.to_string(),
    });
    letters.collect()
}

/// Returns a text that is encoded throughout, in part or not at all, and may then be encoded again as a whole.
fn written(rng: &mut StdRng, text: &str) -> String {
    let share = *[0.0, 0.1, 0.5, 1.0].choose(rng).unwrap();
    let mut written = mixed(rng, text, share);
    for _ in 0..rng.random_range(0..3) {
        written = whole(rng, &written);
    }
    // Each letter is encoded once more, in its own way.
    if rng.random_bool(0.2) {
        written = written.chars().map(|letter| encoded(rng, letter)).collect();
    }
    written
}

/// Returns whether a canary looks encoded itself. Mixtures that are encoded again are ambiguous for such a canary, so
/// it is written in one way throughout, or each letter in its own way, once.
fn looks_encoded(canary: &str) -> bool {
    canary.contains(['%', '\\', '&'])
}

fn one_case(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let rng = &mut rng;
    let canary = match rng.random_bool(0.3) {
        true => clustered_text(rng),
        false => random_text(rng, 8..40),
    };
    let redactor = Redactor::of([&*canary, "another-secret-of-the-agent"]);
    let mut text = match looks_encoded(&canary) {
        true if rng.random_bool(0.5) => mixed(rng, &canary, 0.5),
        true => whole(rng, &canary),
        false => written(rng, &canary),
    };
    let mut is_in_digits = false;
    if rng.random_bool(0.4) {
        let (before, after) = (random_text(rng, 0..9), random_text(rng, 0..9));
        let around = |text: &str| text.replace(['%', '\\', '&'], "x");
        text = in_digits(rng, &format!("{}{text}{}", around(&before), around(&after)));
        is_in_digits = true;
        if rng.random_bool(0.2) {
            text = in_digits(rng, &text);
        }
        if rng.random_bool(0.3) {
            text = whole(rng, &text);
        }
    }
    let (before, after) = ("{\"echo\": \"you sent ", " to us\"}");
    let all = format!("{before}{text}{after}");
    let hidden = redactor.hide_in_text(all.clone());
    assert!(
        hidden.contains("***"),
        "seed {seed}: {canary:?} is left in {all:?}"
    );
    if !is_in_digits {
        assert_eq!(
            hidden,
            format!("{before}***{after}"),
            "seed {seed}: {canary:?} in {all:?}"
        );
    }
    assert!(
        !redactor.finds(hidden.as_bytes()),
        "seed {seed}: {hidden:?}"
    );
    // An excerpt that ends anywhere shows at most a few letters.
    let ends: Vec<usize> = all.char_indices().map(|(at, _)| at).collect();
    let end = *ends.choose(rng).unwrap();
    let start = redactor.hide_in_start(all.as_bytes()[..end].to_vec(), all.len());
    assert!(!redactor.finds(&start), "seed {seed}: {all:?} until {end}");

    // A decoy differs by a letter. A canary that ends with a backslash would be in any escape, and one that begins with
    // a possible last byte of an escape would be in some.
    let may_end_escape = |first: char| first.is_ascii_alphanumeric() || ";}/\"'`$".contains(first);
    if looks_encoded(&canary) || canary.starts_with(may_end_escape) {
        return;
    }
    let mut decoy: Vec<char> = canary.chars().collect();
    let at = rng.random_range(0..decoy.len());
    decoy[at] = if decoy[at] == 'z' { 'y' } else { 'z' };
    let decoy: String = decoy.into_iter().collect();
    let mut text = written(rng, &decoy);
    if rng.random_bool(0.3) {
        text = in_digits(rng, &text);
    }
    let all = format!("{before}{text}{after}");
    assert!(
        !redactor.finds(all.as_bytes()),
        "seed {seed}: the decoy {decoy:?} of {canary:?} is hidden in {all:?}"
    );
}

#[test]
fn canaries_are_found_in_any_encoding_and_decoys_stay() {
    let seed = rand::random::<u32>();
    println!("seeds from {seed}");
    (0..300).for_each(|case| one_case(u64::from(seed) + case));
}

/// Run by scripts/fuzz-secrets.
#[test]
#[ignore = "runs for as long as it is asked to"]
fn fuzz_for_long() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seconds = number("FUZZ_SECONDS").unwrap_or(60);
    let first = number("FUZZ_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut cases = 0;
    while Instant::now() < end {
        one_case(first + cases);
        cases += 1;
    }
    println!("{cases} canaries and as many decoys, with seeds from {first}");
}
