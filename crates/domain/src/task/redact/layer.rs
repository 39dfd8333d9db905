//! A text after some decoding, with the origin of each of its bytes in the original text.

use std::ops::Range;

/// The bytes of a text, decoded so far.
pub(super) struct Layer<'t> {
    pub bytes: &'t [u8],
    pub origin: ByteOrigin<'t>,
}

/// The origin of the bytes of a layer.
pub(super) enum ByteOrigin<'t> {
    /// The bytes are at the same positions of the original text.
    Same,
    /// Each byte comes from a range of the original text.
    Each(&'t [Range<u32>]),
    /// The bytes are encoded in digits of `bits` bits. `letters` are the positions of the digits in the layer below.
    Digits {
        below: &'t Layer<'t>,
        letters: &'t [u32],
        bits: usize,
    },
}

impl Layer<'_> {
    /// Returns the range of the original text that a byte comes from.
    pub fn origin_of(&self, at: usize) -> Range<u32> {
        match &self.origin {
            // A text is shorter than 4 GiB.
            ByteOrigin::Same => at as u32..at as u32 + 1,
            ByteOrigin::Each(ranges) => ranges[at].clone(),
            ByteOrigin::Digits {
                below,
                letters,
                bits,
            } => {
                let first = letters[at * 8 / bits] as usize;
                let last = letters[(at * 8 + 7) / bits] as usize;
                below.origin_of(first).start..below.origin_of(last).end
            }
        }
    }
}
