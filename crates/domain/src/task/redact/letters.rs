//! Reads one letter that a service may have encoded: percent-encoding, escapes of JSON and of programming languages,
//! entities of HTML.

use super::named_letters::{LONGEST_NAME, letter};

/// The beginning of a text, as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LetterReading {
    /// This number of bytes encodes this letter, or a byte of it.
    Encoded(usize, EncodedLetter),
    /// The text ends before the encoding does.
    CutOff,
    /// The first byte is not encoded.
    Plain,
}

/// One byte, or the bytes of one character. A zero byte is read as nothing, because it is every other byte of UTF-16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EncodedLetter {
    bytes: [u8; 4],
    length: usize,
}

impl EncodedLetter {
    const NOTHING: Self = Self {
        bytes: [0; 4],
        length: 0,
    };

    fn of_byte(byte: u8) -> Self {
        match byte {
            0 => Self::NOTHING,
            _ => Self {
                bytes: [byte, 0, 0, 0],
                length: 1,
            },
        }
    }

    fn of_char(letter: char) -> Self {
        if letter == '\0' {
            return Self::NOTHING;
        }
        let mut bytes = [0; 4];
        let length = letter.encode_utf8(&mut bytes).len();
        Self { bytes, length }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns the letter of Latin-1 that the byte may be. In UTF-8 it has other bytes.
    pub fn as_latin_1(&self) -> Option<Self> {
        match *self.bytes() {
            [byte @ 0x80..=0xff] => Some(Self::of_char(char::from(byte))),
            _ => None,
        }
    }
}

/// Returns whether an encoding may begin with this byte.
pub(super) const fn may_begin(byte: u8) -> bool {
    matches!(byte, b'%' | b'\\' | b'&' | 0)
}

/// Reads the beginning of a text. The time is bounded by the number of bytes that it takes.
pub(super) fn read(text: &[u8]) -> LetterReading {
    let found = match text {
        [0, ..] => return LetterReading::Encoded(1, EncodedLetter::NOTHING),
        [b'%', rest @ ..] => percent(rest),
        [b'\\', rest @ ..] => escape(rest),
        [b'&', rest @ ..] => entity(rest),
        _ => Ok(None),
    };
    match found {
        Ok(Some((rest, letter))) => LetterReading::Encoded(rest + 1, letter),
        Ok(None) => LetterReading::Plain,
        Err(CutOff) => LetterReading::CutOff,
    }
}

/// The first byte of an encoding of quoted-printable.
pub(super) const QUOTED: u8 = b'=';

/// Reads the beginning of a text that begins with [`QUOTED`]: `=2B`, or a broken line. Most often the byte is not an
/// encoding, but the separator before a value.
pub(super) fn read_quoted(text: &[u8]) -> LetterReading {
    match text[1..] {
        [] | [b'\r'] => LetterReading::CutOff,
        [b'\n', ..] => LetterReading::Encoded(2, EncodedLetter::NOTHING),
        [b'\r', b'\n', ..] => LetterReading::Encoded(3, EncodedLetter::NOTHING),
        _ => match digits(&text[1..], 2) {
            Ok(Some(byte)) => LetterReading::Encoded(3, EncodedLetter::of_byte(byte as u8)),
            Ok(None) => LetterReading::Plain,
            Err(CutOff) => LetterReading::CutOff,
        },
    }
}

struct CutOff;

/// The number of bytes that follow the first one, and the letter.
type LetterResult = Result<Option<(usize, EncodedLetter)>, CutOff>;

fn hex(byte: u8) -> Option<u32> {
    char::from(byte).to_digit(16)
}

/// Returns the value of the `count` hexadecimal digits with which the text must begin.
fn digits(text: &[u8], count: usize) -> Result<Option<u32>, CutOff> {
    let mut value = 0;
    for at in 0..count {
        match text.get(at).map(|byte| hex(*byte)) {
            None => return Err(CutOff),
            Some(None) => return Ok(None),
            Some(Some(digit)) => value = value * 16 + digit,
        }
    }
    Ok(Some(value))
}

/// Reads `%2F`, and `%u002F` as old scripts write it.
fn percent(rest: &[u8]) -> LetterResult {
    if let [b'u' | b'U', unit @ ..] = rest {
        return Ok(unicode(unit)?.map(|(taken, letter)| (taken + 1, letter)));
    }
    let byte = digits(rest, 2)?;
    // Two digits are one byte.
    Ok(byte.map(|byte| (2, EncodedLetter::of_byte(byte as u8))))
}

/// Reads an escape after its backslash.
fn escape(rest: &[u8]) -> LetterResult {
    let Some(kind) = rest.first() else {
        return Err(CutOff);
    };
    let byte = match kind {
        b'u' => return Ok(unicode(&rest[1..])?.map(|(taken, letter)| (taken + 1, letter))),
        b'x' => {
            let byte = digits(&rest[1..], 2)?;
            return Ok(byte.map(|byte| (3, EncodedLetter::of_byte(byte as u8))));
        }
        b'U' => {
            let letter = digits(&rest[1..], 8)?.and_then(char::from_u32);
            return Ok(letter.map(|letter| (9, EncodedLetter::of_char(letter))));
        }
        b'0'..=b'3' => return octal(rest),
        b'b' => 8,
        b't' => b'\t',
        b'n' => b'\n',
        b'f' => 12,
        b'r' => b'\r',
        // Other letters are not read as escapes, although some languages allow it: the backslash may come from another
        // encoding than the letter after it.
        b'"' | b'\\' | b'/' | b'\'' | b'`' | b'$' => *kind,
        _ => return Ok(None),
    };
    Ok(Some((1, EncodedLetter::of_byte(byte))))
}

/// Reads three octal digits, which are one byte.
fn octal(rest: &[u8]) -> LetterResult {
    let mut value = 0;
    for at in 0..3 {
        match rest.get(at) {
            None => return Err(CutOff),
            Some(digit @ b'0'..=b'7') => value = value << 3 | (digit - b'0'),
            Some(_) => return Ok(None),
        }
    }
    Ok(Some((3, EncodedLetter::of_byte(value))))
}

/// Reads an escape after `\u`: four digits, twice for a character beyond U+FFFF, or any number of digits in braces.
fn unicode(rest: &[u8]) -> LetterResult {
    if let [b'{', number @ ..] = rest {
        return Ok(braces(number)?.map(|(taken, letter)| (taken + 1, letter)));
    }
    let Some(unit) = digits(rest, 4)? else {
        return Ok(None);
    };
    if let Some(letter) = char::from_u32(unit) {
        return Ok(Some((4, EncodedLetter::of_char(letter))));
    }
    // The unit is the first of a surrogate pair, or a half without a meaning.
    let second = match &rest[4..] {
        [b'\\', b'u', second @ ..] if unit < 0xdc00 => digits(second, 4)?,
        [] | [b'\\'] if unit < 0xdc00 => return Err(CutOff),
        _ => None,
    };
    let pair = second.and_then(|second| {
        let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
        char::from_u32(0x10000 + ((unit - 0xd800) << 10) + low)
    });
    Ok(pair.map(|letter| (10, EncodedLetter::of_char(letter))))
}

fn braces(rest: &[u8]) -> LetterResult {
    const MOST_DIGITS: usize = 6;
    let mut value = 0;
    for (at, byte) in rest.iter().take(MOST_DIGITS + 1).enumerate() {
        match (byte, hex(*byte)) {
            (b'}', _) if at > 0 => {
                let letter = char::from_u32(value);
                return Ok(letter.map(|letter| (at + 1, EncodedLetter::of_char(letter))));
            }
            (_, Some(digit)) if at < MOST_DIGITS => value = value * 16 + digit,
            _ => return Ok(None),
        }
    }
    Err(CutOff)
}

/// Reads an entity after its `&`.
fn entity(rest: &[u8]) -> LetterResult {
    match rest {
        [b'#', b'x' | b'X', number @ ..] => {
            Ok(number_of(number, 16)?.map(|(taken, letter)| (taken + 2, letter)))
        }
        [b'#', number @ ..] => {
            Ok(number_of(number, 10)?.map(|(taken, letter)| (taken + 1, letter)))
        }
        [] => Err(CutOff),
        _ => name_of(rest),
    }
}

/// Reads digits, with any number of zeros before them. As in browsers, the semicolon may be missing.
fn number_of(rest: &[u8], radix: u32) -> LetterResult {
    let mut value = 0_u32;
    let is_digit = |byte: &u8| char::from(*byte).to_digit(radix);
    let Some(end) = rest.iter().position(|byte| is_digit(byte).is_none()) else {
        return Err(CutOff);
    };
    for digit in rest[..end].iter().filter_map(is_digit) {
        value = value.saturating_mul(radix).saturating_add(digit);
    }
    let Some(letter) = char::from_u32(value).filter(|_| end > 0) else {
        return Ok(None);
    };
    let taken = end + usize::from(rest[end] == b';');
    Ok(Some((taken, EncodedLetter::of_char(letter))))
}

fn name_of(rest: &[u8]) -> LetterResult {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric();
    let known = &rest[..rest.len().min(LONGEST_NAME + 1)];
    match known.iter().position(|byte| !is_of_name(byte)) {
        Some(end) if known[end] == b';' => {
            let letter = letter(&known[..end]);
            Ok(letter.map(|letter| (end + 1, EncodedLetter::of_char(letter))))
        }
        None if rest.len() <= LONGEST_NAME => Err(CutOff),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_read_in_every_encoding() {
        for (text, expected) in [
            ("%2b1", "+"),
            ("%2B", "+"),
            ("%u002b0", "+"),
            ("%c3", "\u{c3}"),
            ("\\u002B0", "+"),
            ("\\u{2b}", "+"),
            ("\\u{0000fc}", "\u{fc}"),
            ("\\x2b0", "+"),
            ("\\053", "+"),
            ("\\U0000002B", "+"),
            ("\\/a", "/"),
            ("\\\"", "\""),
            ("\\\\n", "\\"),
            ("\\n", "\n"),
            ("\\u00fc", "\u{fc}"),
            ("\\ud83d\\ude00", "\u{1f600}"),
            ("&amp;x", "&"),
            ("&plus;", "+"),
            ("&#43;", "+"),
            ("&#00000000000000000000043;", "+"),
            ("&#x2B;", "+"),
            ("&#X0002b;", "+"),
            ("&#x1F600;", "\u{1f600}"),
            ("&#43,", "+"),
        ] {
            let LetterReading::Encoded(taken, letter) = read(text.as_bytes()) else {
                panic!("{text}");
            };
            assert!(
                taken >= text.trim_end_matches(['0', '1', 'a', 'x', 'n', ',']).len(),
                "{text}"
            );
            // An encoded byte is that byte alone, whatever character it may belong to.
            match expected {
                "\u{c3}" => assert_eq!(letter.bytes(), b"\xc3"),
                expected => assert_eq!(letter.bytes(), expected.as_bytes(), "{text}"),
            }
        }
    }

    #[test]
    fn other_text_means_itself() {
        for text in [
            "%",
            "%2",
            "%zz",
            "%2z",
            "a",
            "",
            "\\",
            "\\u12",
            "\\uzzzz",
            "\\q",
            "&",
            "&;",
            "&x;",
            "&#;",
            "&#x;",
            "&#xg",
            "&unknown;",
            "& b",
            "\\ud83d",
            "\\ud83dx",
            "\\ude00",
            "\\08x",
            "\\400",
            "\\U0000002x",
            "\\Uffffffff",
            "&#99999999999;",
            "\\u{110000}",
            "\\u{}",
            "\\u{1234567}",
        ] {
            assert!(
                !matches!(read(text.as_bytes()), LetterReading::Encoded(..)),
                "{text}"
            );
        }
    }

    #[test]
    fn an_encoding_that_is_cut_off_anywhere_is_known() {
        for text in [
            "%2b",
            "%u002b",
            "\\u002b",
            "\\u{2b}",
            "\\x2b",
            "\\053",
            "\\U0000002B",
            "\\/",
            "\\ud83d\\ude00",
            "&amp;",
            "&#43;",
            "&#x2B;",
        ] {
            for end in 1..text.len() {
                let cut = &text[..end];
                assert_eq!(read(cut.as_bytes()), LetterReading::CutOff, "{cut}");
            }
        }
    }

    #[test]
    fn zeros_are_nothing() {
        for text in [&b"\0"[..], b"\\u0000", b"%00", b"&#0;"] {
            let LetterReading::Encoded(taken, letter) = read(text) else {
                panic!("{text:?}");
            };
            assert_eq!((taken, letter.bytes()), (text.len(), &b""[..]));
        }
    }
}
