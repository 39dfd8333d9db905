/// Adds bytes as hexadecimal digits, in lower case.
pub(crate) fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 0xf] {
            text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
}
