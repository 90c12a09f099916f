//! Where an HTTP/2 connection stands in its frames (RFC 9113 sections 4.1 and 6.10).
//!
//! Decides whether a client owes the rest of a head, or of any other frame that holds no body, from the
//! frames' own nine bytes. It must never look at what a frame holds, and keeps nothing of it: a stream
//! of frames costs the same however long it is.

/// The frame's own head.
const HEAD: usize = 9;
/// `PRI * HTTP/2.0` and what follows it.
const PREFACE: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Follows the frames of a client.
#[derive(Debug)]
pub struct Frames {
    /// Bytes of the preface that are still to come.
    preface: usize,
    head: [u8; HEAD],
    /// How many bytes of `head` are in.
    known: usize,
    /// Bytes of the frame that are still to come.
    left: usize,
    /// Whether a block of header fields has begun and not ended.
    block: bool,
    /// How often the client owed nothing between two frames, once a first head was whole.
    steps: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            preface: PREFACE,
            head: [0; HEAD],
            known: 0,
            left: 0,
            block: false,
            steps: 0,
        }
    }
}

impl Frames {
    /// Whether the client has to say more, and soon: before its first head, within a head, and within
    /// a frame that is no DATA.
    pub fn owes(&self) -> bool {
        let within = self.known > 0 && (self.known < HEAD || self.kind() != DATA);
        self.steps == 0 || self.block || within
    }

    /// A number that grows with every frame that is whole, but not within a head or before the first.
    pub fn steps(&self) -> usize {
        self.steps
    }

    fn kind(&self) -> u8 {
        self.head[3]
    }

    /// Takes what came next.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        let preface = self.preface.min(bytes.len());
        self.preface -= preface;
        bytes = bytes.get(preface..).unwrap_or_default();
        while !bytes.is_empty() {
            bytes = if self.known < HEAD {
                self.take_head(bytes)
            } else {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes.get(taken..).unwrap_or_default()
            };
            if self.known == HEAD && self.left == 0 {
                self.end();
            }
        }
    }

    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(bytes.len().min(HEAD - self.known));
        for byte in taken {
            self.head[self.known] = *byte;
            self.known += 1;
        }
        if self.known == HEAD {
            let [a, b, c, ..] = self.head;
            self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            self.block |= self.kind() == HEADERS;
        }
        rest
    }

    fn end(&mut self) {
        let flags = self.head[4];
        if matches!(self.kind(), HEADERS | CONTINUATION) && flags & END_HEADERS != 0 {
            self.block = false;
            self.steps = self.steps.max(1);
        }
        if self.steps > 0 && !self.block {
            self.steps = self.steps.wrapping_add(1).max(1);
        }
        self.known = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        bytes.resize(HEAD + usize::from(length), 0);
        bytes
    }

    #[test]
    fn a_head_is_owed_until_its_last_byte_however_it_is_cut() {
        let mut bytes = vec![b'x'; PREFACE];
        bytes.extend(frame(4, 0, 0));
        bytes.extend(frame(HEADERS, 0, 5));
        bytes.extend(frame(CONTINUATION, END_HEADERS, 3));
        for size in 1..bytes.len() {
            let mut frames = Frames::default();
            let (last, most) = bytes.split_last().unwrap();
            for part in most.chunks(size) {
                frames.pass(part);
                assert!(frames.owes(), "{size}");
            }
            frames.pass(&[*last]);
            assert!(!frames.owes() && frames.steps() > 0, "{size}");
        }
    }

    #[test]
    fn a_body_may_pause_and_other_frames_may_not() {
        let mut frames = Frames::default();
        frames.pass(&[0; PREFACE]);
        frames.pass(&frame(HEADERS, END_HEADERS, 1));
        let data = frame(DATA, 0, 9);
        frames.pass(&data[..12]);
        assert!(!frames.owes());
        frames.pass(&data[12..]);
        assert!(!frames.owes());
        frames.pass(&frame(6, 0, 8)[..10]);
        assert!(frames.owes(), "half a PING");
    }
}
