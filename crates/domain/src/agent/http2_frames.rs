//! The frames of an HTTP/2 connection that cost the reader work and carry nothing: a peer that sends them without end
//! would keep a thread busy. This module finds them in the incoming bytes and bounds their number.

use std::time::Duration;

/// The preface is the first data that a client sends (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER: usize = 9;
/// The most frames that may come at once: a peer that measures its round trips sends a PING in each.
const BURST: f64 = 1000.0;
/// The number of further frames that each second allows.
const EACH_SECOND: f64 = 200.0;
/// A peer may send one more frame about data that it received for each this many bytes that were sent to it. A peer
/// that sends two WINDOW_UPDATE for each small frame of a body stays within this.
const BYTES_FOR_FRAME: f64 = 16.0;
/// The most frames about received data that may come at once, for any amount of data: each takes a microsecond of a
/// thread.
const MOST_ABOUT_SENT: f64 = 65_536.0;

/// The peer has sent more of these frames than a connection allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the peer sent thousands of HTTP/2 frames that carry nothing (PING, SETTINGS, PRIORITY, WINDOW_UPDATE or empty DATA)"
)]
pub struct Http2Flood;

/// A number of frames that are allowed, which grows with time.
#[derive(Clone, Debug)]
struct Allowance {
    left: f64,
    refilled: Duration,
}

impl Allowance {
    const FULL: Self = Self {
        left: BURST,
        refilled: Duration::ZERO,
    };

    fn take(&mut self, elapsed: Duration) -> Result<(), Http2Flood> {
        let since = elapsed.saturating_sub(self.refilled).as_secs_f64();
        // The allowance for sent bytes is kept, even above the burst.
        let most = self.left.max(BURST);
        self.left = (self.left + since * EACH_SECOND).min(most) - 1.0;
        self.refilled = elapsed;
        if self.left < 0.0 {
            Err(Http2Flood)
        } else {
            Ok(())
        }
    }
}

/// The class of a frame, by which it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Weight {
    /// The frame carries data.
    Carries,
    /// The frame requires a response, or is ignored.
    Nothing,
    /// The frame carries no data, and is about data that was sent to the peer.
    AboutSent,
}

/// Reads the headers of frames in the incoming bytes.
#[derive(Clone, Debug)]
pub struct Http2Frames {
    /// The number of bytes of the preface that have been received; `None` if none is expected, or after it.
    preface: Option<usize>,
    /// True if the peer uses another protocol.
    is_other: bool,
    header: [u8; HEADER],
    header_length: usize,
    /// The number of bytes that are left of the payload of the current frame.
    payload: usize,
    nothing: Allowance,
    about_sent: Allowance,
}

impl Http2Frames {
    /// Counts the frames that a server sends.
    pub fn of_server() -> Self {
        Self {
            preface: None,
            is_other: false,
            header: [0; HEADER],
            header_length: 0,
            payload: 0,
            nothing: Allowance::FULL,
            about_sent: Allowance::FULL,
        }
    }

    /// Counts the frames that a client sends, which may speak HTTP/1.1 instead.
    pub fn of_client() -> Self {
        Self {
            preface: Some(0),
            ..Self::of_server()
        }
    }

    /// Records that this many bytes were sent to the peer.
    pub fn sent(&mut self, bytes: usize) {
        let more = self.about_sent.left + bytes as f64 / BYTES_FOR_FRAME;
        self.about_sent.left = more.min(MOST_ABOUT_SENT);
    }

    /// Reads incoming bytes. `elapsed` is the time since the connection began.
    pub fn read(&mut self, mut bytes: &[u8], elapsed: Duration) -> Result<(), Http2Flood> {
        while !bytes.is_empty() && !self.is_other {
            if let Some(known) = self.preface {
                let length = bytes.len().min(PREFACE.len() - known);
                self.is_other = bytes[..length] != PREFACE[known..known + length];
                self.preface = Some(known + length).filter(|known| *known < PREFACE.len());
                bytes = &bytes[length..];
            } else if self.payload > 0 {
                let length = bytes.len().min(self.payload);
                self.payload -= length;
                bytes = &bytes[length..];
            } else {
                let length = bytes.len().min(HEADER - self.header_length);
                let end = self.header_length + length;
                self.header[self.header_length..end].copy_from_slice(&bytes[..length]);
                self.header_length = end % HEADER;
                bytes = &bytes[length..];
                if end == HEADER {
                    self.begin_frame(elapsed)?;
                }
            }
        }
        Ok(())
    }

    fn begin_frame(&mut self, elapsed: Duration) -> Result<(), Http2Flood> {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let is_acknowledgement = flags & 1 == 1;
        let weight = match kind {
            // DATA, whose first flag ends the stream.
            0 if self.payload == 0 && !is_acknowledgement => Weight::Nothing,
            // DATA, HEADERS, PUSH_PROMISE, CONTINUATION.
            0 | 1 | 5 | 9 => Weight::Carries,
            // The acknowledgements of SETTINGS and PING.
            4 | 6 if is_acknowledgement => Weight::AboutSent,
            // RST_STREAM, GOAWAY, WINDOW_UPDATE.
            3 | 7 | 8 => Weight::AboutSent,
            // PRIORITY, SETTINGS, PING, and extensions, which are ignored.
            _ => Weight::Nothing,
        };
        match weight {
            Weight::Carries => Ok(()),
            Weight::Nothing => self.nothing.take(elapsed),
            Weight::AboutSent => self.about_sent.take(elapsed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 0];
        frame.extend(payload);
        frame
    }

    /// Returns how many of these frames in a row are allowed, read in pieces of this size.
    fn allowed(frames: &mut Http2Frames, frame: &[u8], piece: usize) -> usize {
        (0..5000)
            .take_while(|_| {
                let mut pieces = frame.chunks(piece);
                pieces.all(|piece| frames.read(piece, Duration::ZERO).is_ok())
            })
            .count()
    }

    #[test]
    fn frames_that_carry_nothing_are_bounded_however_they_are_cut() {
        for piece in [1, 4, 9, 100] {
            for frame in [
                frame(6, 0, &[1; 8]),
                frame(4, 0, &[]),
                frame(2, 0, &[0; 5]),
                frame(0, 0, &[]),
                frame(77, 1, &[6; 50]),
                frame(8, 0, &[0, 0, 0, 1]),
                frame(6, 1, &[1; 8]),
                frame(4, 1, &[]),
                frame(3, 0, &[0, 0, 0, 8]),
                frame(7, 0, &[0; 8]),
            ] {
                assert_eq!(allowed(&mut Http2Frames::of_server(), &frame, piece), 1000);
            }
            for frame in [
                frame(0, 0, &[6; 90]),
                frame(0, 1, &[]),
                frame(1, 4, &[6; 9]),
            ] {
                assert_eq!(allowed(&mut Http2Frames::of_server(), &frame, piece), 5000);
            }
        }
    }

    #[test]
    fn what_is_sent_allows_the_peer_frames_that_are_about_it_and_no_others() {
        let update = frame(8, 0, &[0, 0, 0, 1]);
        let mut frames = Http2Frames::of_server();
        // A peer acknowledges each small frame of a body, for its stream and for the connection.
        for _ in 0..100_000 {
            frames.sent(9 + 23);
            frames.read(&update, Duration::ZERO).unwrap();
            frames.read(&update, Duration::ZERO).unwrap();
        }
        assert_eq!(allowed(&mut frames, &update, 100), 1000);
        let mut frames = Http2Frames::of_server();
        frames.sent(16 << 10);
        assert_eq!(allowed(&mut frames, &update, 100), 2024);
        // The number of frames that may come at once is bounded for any amount of sent data.
        let mut frames = Http2Frames::of_server();
        frames.sent(1 << 30);
        let mut count = 0;
        while count < 100_000 && frames.read(&update, Duration::ZERO).is_ok() {
            count += 1;
        }
        assert_eq!(count, 65_536);
        let mut frames = Http2Frames::of_server();
        frames.sent(16 << 10);
        assert_eq!(allowed(&mut frames, &frame(6, 0, &[1; 8]), 100), 1000);
    }

    #[test]
    fn with_time_more_are_allowed() {
        let mut frames = Http2Frames::of_server();
        let ping = frame(6, 0, &[1; 8]);
        for second in 0..600 {
            for _ in 0..200 {
                frames.read(&ping, Duration::from_secs(second)).unwrap();
            }
        }
        let rest = allowed(&mut frames, &ping, 100);
        assert!((800..=1000).contains(&rest), "{rest}");
    }

    #[test]
    fn a_client_begins_with_the_preface_or_speaks_another_protocol() {
        let ping = frame(6, 0, &[1; 8]);
        for piece in [1, 5, 24, 30] {
            let mut frames = Http2Frames::of_client();
            for piece in [PREFACE, &ping].concat().chunks(piece) {
                frames.read(piece, Duration::ZERO).unwrap();
            }
            assert_eq!(allowed(&mut frames, &ping, piece), 999);
            let mut other = Http2Frames::of_client();
            other
                .read(b"POST /v1/tasks HTTP/1.1\r\n", Duration::ZERO)
                .unwrap();
            assert_eq!(allowed(&mut other, &ping, piece), 5000);
        }
    }
}
