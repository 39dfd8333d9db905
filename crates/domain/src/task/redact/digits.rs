//! Finds parts of a text that could be base64 or hexadecimal: long runs of digits.

/// A part of a text that may be encoded in digits.
pub(super) struct DigitRun<'r> {
    /// The positions of the digits in the text.
    pub digit_offsets: &'r [u32],
    /// The number of bits of a digit.
    pub bits: usize,
    /// The number of digits among which the first byte may begin.
    pub phases: usize,
    /// True if the text ends with the run.
    pub is_last: bool,
}

/// Marks a byte that is no digit.
const NONE: u8 = 0xff;

const BASE64: [u8; 256] = {
    let mut values = [NONE; 256];
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut at = 0;
    while at < digits.len() {
        values[digits[at] as usize] = at as u8;
        at += 1;
    }
    // The base64 of URLs has these two digits.
    values[b'-' as usize] = 62;
    values[b'_' as usize] = 63;
    values
};

const HEX: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut at = 0;
    while at < 10 {
        values[b'0' as usize + at] = at as u8;
        at += 1;
    }
    while at < 16 {
        values[b'a' as usize + at - 10] = at as u8;
        values[b'A' as usize + at - 10] = at as u8;
        at += 1;
    }
    values
};

/// Returns whether the byte may separate digits: lines may be broken within them, and the bytes of hexadecimal may be
/// separate, as in `2b:3c` or `2b 3c`.
fn may_separate(byte: u8, bits: usize) -> bool {
    matches!(byte, b'\r' | b'\n') || bits == 4 && matches!(byte, b':' | b' ')
}

/// Calls `found` with each run that is long enough for `shortest` bytes. If `cut` is given, a run at the end of the
/// text must be long enough only for `cut` bytes.
pub(super) fn runs(
    text: &[u8],
    shortest: usize,
    cut: Option<usize>,
    mut found: impl FnMut(DigitRun<'_>),
) {
    let mut letters: Vec<u32> = Vec::new();
    for (table, bits, phases) in [(&BASE64, 6, 4), (&HEX, 4, 2)] {
        let fewest = |bytes: usize| (bytes * 8).div_ceil(bits);
        let (shortest, cut) = (fewest(shortest), cut.map(fewest));
        let mut at = 0;
        while at < text.len() {
            letters.clear();
            while let Some(byte) = text.get(at) {
                match table[usize::from(*byte)] {
                    NONE if letters.is_empty() || !may_separate(*byte, bits) => break,
                    NONE => {}
                    // A text is shorter than 4 GiB.
                    _ => letters.push(at as u32),
                }
                at += 1;
            }
            let is_last = at == text.len();
            let shortest = cut.filter(|_| is_last).unwrap_or(shortest);
            if letters.len() >= shortest {
                found(DigitRun {
                    digit_offsets: &letters,
                    bits,
                    phases,
                    is_last,
                });
            }
            at += 1;
        }
    }
}

impl DigitRun<'_> {
    /// Returns the whole bytes that these digits of a text encode.
    pub fn decode(&self, letters: &[u32], text: &[u8]) -> Vec<u8> {
        let table = if self.bits == 4 { &HEX } else { &BASE64 };
        let mut bytes = Vec::with_capacity(letters.len() * self.bits / 8);
        let (mut value, mut bits) = (0_u32, 0);
        for at in letters {
            let digit = table[usize::from(text[*at as usize])];
            value = value << self.bits | u32::from(digit);
            bits += self.bits;
            if bits >= 8 {
                bits -= 8;
                // The cast keeps the lowest byte.
                bytes.push((value >> bits) as u8);
                value &= (1 << bits) - 1;
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};

    use super::*;

    fn decoded(text: &str, shortest: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        runs(text.as_bytes(), shortest, None, |run| {
            all.extend(
                (0..run.phases)
                    .map(|phase| run.decode(&run.digit_offsets[phase..], text.as_bytes())),
            );
        });
        all
    }

    #[test]
    fn runs_are_decoded_from_each_of_their_first_digits() {
        let written = STANDARD.encode("some text");
        for text in [
            written.clone(),
            format!("x {written}."),
            format!("x{written}"),
            format!("{}\r\n{}", &written[..5], &written[5..]),
        ] {
            assert!(
                decoded(&text, 8).iter().any(|found| found == b"some text"),
                "{text}"
            );
        }
        assert!(
            decoded("0: 736f6D652074657874", 8)
                .iter()
                .any(|found| found == b"some text")
        );
    }

    #[test]
    fn short_runs_are_left_alone() {
        assert!(decoded("some words and 0123456789", 8).is_empty());
        assert!(decoded("", 1).is_empty());
    }
}
