//! Keeps an event on one line, also if it contains a text of a remote service: otherwise a response could forge log
//! lines.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

pub struct OneLine<W>(pub W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for OneLine<W> {
    type Writer = EscapedLine<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        EscapedLine(self.0.make_writer())
    }
}

pub struct EscapedLine<W>(W);

/// `fmt::Layer` writes each event as a whole, with its one line feed at the end.
impl<W: Write> Write for EscapedLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let body = event.strip_suffix(b"\n").unwrap_or(event);
        if body.iter().any(|b| matches!(b, b'\n' | b'\r')) {
            let mut line = Vec::with_capacity(event.len() + 8);
            for byte in body {
                match byte {
                    b'\n' => line.extend_from_slice(b"\\n"),
                    b'\r' => line.extend_from_slice(b"\\r"),
                    byte => line.push(*byte),
                }
            }
            line.extend_from_slice(&event[body.len()..]);
            self.0.write_all(&line)?;
        } else {
            self.0.write_all(event)?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
