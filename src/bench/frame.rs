//! The part of HTTP/1.1 that is needed to find the end of a message on a keep-alive connection. Both ends of the load
//! are small and part of this program, so that the server is measured, not the client.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unframed;

/// Returns the lengths of head and body of the first message in the buffer; `None` while it is incomplete. A message
/// without Content-Length has no body; chunked messages are not supported.
pub fn whole(buffer: &[u8]) -> Result<Option<(usize, usize)>, Unframed> {
    let Some(head) = find(buffer, b"\r\n\r\n") else {
        return Ok(None);
    };
    let body = body_length(&buffer[..head])?;
    let head = head + 4;
    Ok((buffer.len() >= head + body).then_some((head, body)))
}

fn body_length(head: &[u8]) -> Result<usize, Unframed> {
    let mut length = 0;
    for line in head.split(|byte| *byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return Err(Unframed);
        };
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.eq_ignore_ascii_case(b"content-length") {
            let value = str::from_utf8(value).map_err(|_| Unframed)?;
            length = value.trim().parse().map_err(|_| Unframed)?;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err(Unframed);
        }
    }
    Ok(length)
}

/// Returns the index at which `needle` begins.
pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_whole_when_its_body_is() {
        let text = b"POST / HTTP/1.1\r\nhost: a\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(whole(text), Ok(Some((text.len() - 2, 2))));
        for cut in 0..text.len() {
            assert_eq!(whole(&text[..cut]), Ok(None), "{cut}");
        }
    }

    #[test]
    fn what_follows_a_message_is_not_part_of_it() {
        let text = b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /";
        assert_eq!(whole(text), Ok(Some((text.len() - 5, 0))));
    }

    #[test]
    fn a_message_whose_end_cannot_be_known_is_refused() {
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(whole(chunked), Err(Unframed));
        assert_eq!(
            whole(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"),
            Err(Unframed)
        );
    }
}
