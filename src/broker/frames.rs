//! A filter for the frames that a broker sends. Brokers pass on messages without reading all that publishers wrote in
//! them. The client's parser gives up the connection for text that is not UTF-8, and its thread for tables that are
//! nested without end: one such message would be delivered again and again, and stop its queue. So the properties of
//! each message are checked here first, and replaced if they cannot be read. A header of the message then gives the
//! reason, and the message is refused like any other that cannot be read.

use std::str::from_utf8;

/// The header of messages whose own properties cannot be read.
pub const UNREADABLE: &str = "provost-unreadable";

/// The deepest nesting of tables that passes. No known publisher nests headers.
const DEEPEST: usize = 16;

/// The length of a frame's type, channel and size.
const FRAME_HEAD: usize = 7;
const CONTENT_HEADER: u8 = 2;
/// A content header fits into one frame, and no broker agrees on longer ones than 128 KiB unless it is configured to.
const LONGEST_HEADER: usize = 8 << 20;

/// The length of a content header's class, weight, size of the body, and flags.
const FIXED: usize = 14;

#[derive(Default)]
pub struct FrameFilter {
    head: Vec<u8>,
    state: FilterState,
}

#[derive(Default)]
enum FilterState {
    #[default]
    Head,
    /// This many bytes follow of a frame that is not checked.
    Pass(usize),
    /// A content header of this size, with its end mark, and the bytes of it that have arrived.
    Header(usize, Vec<u8>),
}

impl FrameFilter {
    /// Appends the filtered bytes of the stream to `out`.
    pub fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            match &mut self.state {
                FilterState::Head => {
                    let missing = FRAME_HEAD - self.head.len();
                    let taken = missing.min(bytes.len());
                    self.head.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    if self.head.len() < FRAME_HEAD {
                        continue;
                    }
                    let size = &self.head[3..FRAME_HEAD];
                    let size = size
                        .iter()
                        .fold(0, |size, byte| size << 8 | usize::from(*byte));
                    // The end mark is one more byte.
                    let size = size.saturating_add(1);
                    if self.head[0] == CONTENT_HEADER && size <= LONGEST_HEADER {
                        self.state = FilterState::Header(size, Vec::new());
                    } else {
                        out.append(&mut self.head);
                        self.state = FilterState::Pass(size);
                    }
                }
                FilterState::Pass(left) => {
                    let taken = (*left).min(bytes.len());
                    out.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    *left -= taken;
                    if *left == 0 {
                        self.state = FilterState::Head;
                    }
                }
                FilterState::Header(size, gathered) => {
                    let taken = (*size - gathered.len()).min(bytes.len());
                    gathered.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    if gathered.len() == *size {
                        let payload = std::mem::take(gathered);
                        self.state = FilterState::Head;
                        self.emit(&payload, out);
                    }
                }
            }
        }
    }

    fn emit(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        let (content, end) = payload.split_at(payload.len() - 1);
        let replaced = match check(content) {
            Ok(()) => None,
            Err(fault) => replacement(content, &fault),
        };
        let content = replaced.as_deref().unwrap_or(content);
        // The type and the channel are copied; the size may differ.
        out.extend_from_slice(&self.head[..3]);
        out.extend_from_slice(&(content.len() as u32).to_be_bytes());
        out.extend_from_slice(content);
        out.extend_from_slice(end);
        self.head.clear();
    }
}

/// Returns a content header without properties, but with the header that gives the reason.
fn replacement(content: &[u8], fault: &str) -> Option<Vec<u8>> {
    const HEADERS: u16 = 1 << 13;
    let mut made = content.get(..FIXED - 2)?.to_vec();
    made.extend_from_slice(&HEADERS.to_be_bytes());
    let mut table = vec![UNREADABLE.len() as u8];
    table.extend_from_slice(UNREADABLE.as_bytes());
    table.push(b'S');
    table.extend_from_slice(&(fault.len() as u32).to_be_bytes());
    table.extend_from_slice(fault.as_bytes());
    made.extend_from_slice(&(table.len() as u32).to_be_bytes());
    made.append(&mut table);
    Some(made)
}

/// A property's name and form, in the order of their flags from bit 15.
const PROPERTIES: [(&str, Form); 14] = [
    ("content_type", Form::Short),
    ("content_encoding", Form::Short),
    ("headers", Form::Table),
    ("delivery_mode", Form::Bytes(1)),
    ("priority", Form::Bytes(1)),
    ("correlation_id", Form::Short),
    ("reply_to", Form::Short),
    ("expiration", Form::Short),
    ("message_id", Form::Short),
    ("timestamp", Form::Bytes(8)),
    ("type", Form::Short),
    ("user_id", Form::Short),
    ("app_id", Form::Short),
    ("cluster_id", Form::Short),
];

#[derive(Clone, Copy)]
enum Form {
    Short,
    Table,
    Bytes(usize),
}

fn check(content: &[u8]) -> Result<(), String> {
    let Some((fixed, mut rest)) = content.split_at_checked(FIXED) else {
        return Err("the message's properties end too soon".to_owned());
    };
    let flags = u16::from_be_bytes([fixed[FIXED - 2], fixed[FIXED - 1]]);
    for (at, (name, form)) in PROPERTIES.iter().enumerate() {
        if flags & (1 << (15 - at)) == 0 {
            continue;
        }
        let checked = match form {
            Form::Short => short(&mut rest),
            Form::Table => table(&mut rest, 0),
            Form::Bytes(count) => take(&mut rest, *count).map(drop),
        };
        checked.map_err(|fault| format!("its property {name} {fault}"))?;
    }
    Ok(())
}

type FieldCheck<T = ()> = Result<T, &'static str>;

fn take<'b>(rest: &mut &'b [u8], count: usize) -> FieldCheck<&'b [u8]> {
    let (taken, left) = rest.split_at_checked(count).ok_or("ends too soon")?;
    *rest = left;
    Ok(taken)
}

fn short(rest: &mut &[u8]) -> FieldCheck {
    let length = usize::from(take(rest, 1)?[0]);
    let text = take(rest, length)?;
    from_utf8(text)
        .map(drop)
        .map_err(|_| "contains text that is not UTF-8")
}

fn long<'b>(rest: &mut &'b [u8]) -> FieldCheck<&'b [u8]> {
    let length = take(rest, 4)?;
    let length = length
        .iter()
        .fold(0, |length, byte| length << 8 | usize::from(*byte));
    take(rest, length)
}

fn table(rest: &mut &[u8], depth: usize) -> FieldCheck {
    let mut entries = long(rest)?;
    while !entries.is_empty() {
        short(&mut entries)?;
        value(&mut entries, depth)?;
    }
    Ok(())
}

fn value(rest: &mut &[u8], depth: usize) -> FieldCheck {
    if depth > DEEPEST {
        return Err("contains tables within tables, more than 16 deep");
    }
    let size = match take(rest, 1)?[0] {
        b'S' | b'x' => return long(rest).map(drop),
        b'F' => return table(rest, depth + 1),
        b'A' => {
            let mut items = long(rest)?;
            while !items.is_empty() {
                value(&mut items, depth + 1)?;
            }
            return Ok(());
        }
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'U' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'l' | b'L' | b'd' | b'T' => 8,
        _ => return Err("contains a value of a type that AMQP does not know"),
    };
    take(rest, size).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, content: &[u8]) -> Vec<u8> {
        let mut frame = vec![kind, 0, 1];
        frame.extend_from_slice(&(content.len() as u32).to_be_bytes());
        frame.extend_from_slice(content);
        frame.push(0xCE);
        frame
    }

    /// Returns a content header with a message id and headers.
    fn header(message_id: &[u8], table: &[u8]) -> Vec<u8> {
        let mut content = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        content.extend_from_slice(&(1u16 << 13 | 1 << 7).to_be_bytes());
        content.extend_from_slice(&(table.len() as u32).to_be_bytes());
        content.extend_from_slice(table);
        content.push(message_id.len() as u8);
        content.extend_from_slice(message_id);
        content
    }

    fn filtered(stream: &[u8], at_once: usize) -> Vec<u8> {
        let (mut filter, mut out) = (FrameFilter::default(), Vec::new());
        for part in stream.chunks(at_once) {
            filter.feed(part, &mut out);
        }
        out
    }

    #[test]
    fn what_can_be_read_passes_unchanged_however_it_arrives() {
        let table = b"\x01aS\x00\x00\x00\x02\xff\xfe\x01bA\x00\x00\x00\x02t\x01\x01cF\x00\x00\x00\x03\x01dV";
        let stream = [
            frame(1, b"method"),
            frame(2, &header(b"id-7", table)),
            frame(3, &[0xff; 300]),
            frame(8, b""),
        ]
        .concat();
        for at_once in [1, 2, 7, 100, 10_000] {
            assert_eq!(filtered(&stream, at_once), stream, "{at_once}");
        }
    }

    #[test]
    fn properties_that_cannot_be_read_are_replaced_by_the_reason() {
        let mut deep = b"\x01aV".to_vec();
        for _ in 0..5000 {
            let mut outer = b"\x01aF".to_vec();
            outer.extend_from_slice(&(deep.len() as u32).to_be_bytes());
            outer.append(&mut deep);
            deep = outer;
        }
        let cases: [(&[u8], &[u8], &str); 5] = [
            (
                b"\xff\xfe",
                b"",
                "message_id contains text that is not UTF-8",
            ),
            (
                b"id",
                b"\x01\xffV",
                "headers contains text that is not UTF-8",
            ),
            (b"id", &deep, "more than 16 deep"),
            (b"id", b"\x01a?", "of a type that AMQP does not know"),
            (b"id", b"\x01aS\x00\x00\xff\xffx", "headers ends too soon"),
        ];
        for (id, table, says) in cases {
            let next = frame(3, b"body");
            let stream = [frame(2, &header(id, table)), next.clone()].concat();
            let out = filtered(&stream, 13);
            let text = String::from_utf8_lossy(&out);
            assert!(text.contains(UNREADABLE) && text.contains(says), "{text:?}");
            assert!(out.ends_with(&next));
            let content = &out[FRAME_HEAD..out.len() - next.len() - 1];
            assert_eq!(check(content), Ok(()), "{text:?}");
            // The size of the body is unchanged.
            assert_eq!(content[4..12], [0, 0, 0, 0, 0, 0, 0, 9]);
        }
    }
}
