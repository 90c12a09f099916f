//! What is known of an event stream while its bytes pass unchanged.
//!
//! Reads just enough of each line to tell where events end, whether the stream is complete, and
//! whether the worker itself told an error in it. It holds no event and delays no byte; whatever is
//! added to a stream goes in where it says.

pub mod errors;

use memchr::memchr2;

/// Bytes of a line that are looked at: enough for what is looked for, with some white space.
const LOOKED_AT: usize = 32;
const DONE: &[u8] = b"[DONE]";
/// How workers begin an error object in a stream (specification section 4.10).
const ERROR: &[u8] = b"{\"error\"";

/// A stream of server-sent events, up to the last byte that passed.
#[derive(Debug, Default)]
pub struct EventScan {
    /// The beginning of the line that has not ended.
    line: Vec<u8>,
    /// Whether that line is longer.
    line_goes_on: bool,
    /// A line that ended with CR may go on with LF.
    after_cr: bool,
    /// Whether a line has come since the last blank one.
    in_event: bool,
    /// The last line that is not blank was `data: [DONE]`.
    done: bool,
    /// An event was an error object.
    failed: bool,
}

impl EventScan {
    /// Looks at bytes on their way to the client.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        if std::mem::take(&mut self.after_cr) {
            match bytes.strip_prefix(b"\n") {
                Some(rest) => bytes = rest,
                None => self.after_cr = bytes.is_empty(),
            }
        }
        while let Some(end) = memchr2(b'\n', b'\r', bytes) {
            let (line, rest) = bytes.split_at(end);
            self.extend(line);
            self.line_ends();
            bytes = match rest {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
        }
        self.extend(bytes);
    }

    fn extend(&mut self, part: &[u8]) {
        let room = LOOKED_AT - self.line.len();
        self.line_goes_on |= part.len() > room;
        self.line
            .extend_from_slice(part.get(..room).unwrap_or(part));
    }

    fn line_ends(&mut self) {
        if self.line.is_empty() {
            self.in_event = false;
            return;
        }
        self.in_event = true;
        self.done = self.line_is_done();
        self.failed |= data(&self.line).is_some_and(|data| data.starts_with(ERROR));
        self.line.clear();
        self.line_goes_on = false;
    }

    fn line_is_done(&self) -> bool {
        !self.line_goes_on && data(&self.line).is_some_and(|data| data.trim_ascii_end() == DONE)
    }

    /// Whether the stream has ended as it should: with `data: [DONE]`. Its own line's end may be
    /// missing.
    pub fn is_complete(&self) -> bool {
        if self.line.is_empty() {
            self.done
        } else {
            self.line_is_done()
        }
    }

    /// Whether the worker itself told an error in it.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether nothing of an event has come that has not ended: an event or a comment may go in.
    pub fn at_boundary(&self) -> bool {
        self.line.is_empty() && !self.in_event
    }

    /// `event`, preceded by what ends the event that broke off, if one did.
    pub fn append(&self, event: &str) -> String {
        if self.at_boundary() {
            event.to_owned()
        } else {
            format!("\n\n{event}")
        }
    }
}

/// The value of a line that is a `data` field.
fn data(line: &[u8]) -> Option<&[u8]> {
    Some(line.strip_prefix(b"data:")?.trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(parts: &[&[u8]]) -> EventScan {
        let mut scan = EventScan::default();
        for part in parts {
            scan.pass(part);
        }
        scan
    }

    /// Calls `check` with the scan of `stream` however it is cut.
    fn cut(stream: &str, check: impl Fn(&EventScan) -> bool) {
        let bytes = stream.as_bytes();
        for at in 0..=bytes.len() {
            let (one, two) = bytes.split_at(at);
            assert!(check(&scan(&[one, b"", two])), "{stream:?} cut at {at}");
        }
        let each: Vec<&[u8]> = bytes.chunks(1).collect();
        assert!(check(&scan(&each)), "{stream:?} byte by byte");
    }

    #[test]
    fn completion_is_seen_however_the_stream_is_cut() {
        for stream in [
            "data: {\"a\":1}\n\ndata: [DONE]\n\n",
            "data: {\"a\":1}\r\n\r\ndata:[DONE]\r\n\r\n",
            "data: {\"a\":1}\r\rdata:  [DONE] \r\r",
            "data: [DONE]",
            "data: [DONE]\n",
        ] {
            cut(stream, EventScan::is_complete);
        }
        for stream in [
            "",
            "data: {\"a\":\"data: [DONE]\"}\n\n",
            "data: [DONE",
            "event: [DONE]\n\n",
            "xdata: [DONE]\n\n",
            "data: [DONE]\n\ndata: {}\n\n",
            "data: [DONE]\n\ndata: {",
            "data: [DONE]                                       more\n\n",
        ] {
            cut(stream, |scan| !scan.is_complete());
        }
    }

    #[test]
    fn boundaries_are_seen_however_the_stream_is_cut() {
        for stream in [
            "",
            "data: a\n\n",
            "data: a\r\n\r\n",
            "data: a\r\r",
            "data: a\r\n\n",
            ": comment\n\n\n\n",
        ] {
            cut(stream, EventScan::at_boundary);
        }
        for stream in [
            "data: a\n",
            "data: a\r\n",
            "data: a\r",
            "data: a\n\n:",
            "data: a\n\ndata: \u{e9}\n: comment\n",
            "d",
        ] {
            cut(stream, |scan| !scan.at_boundary());
        }
    }

    #[test]
    fn a_workers_own_error_is_seen_however_the_stream_is_cut() {
        for stream in [
            "data: {\"error\":{\"message\":\"m\"}}\n\ndata: [DONE]\n\n",
            "data: {}\r\n\r\ndata:{\"error\": {}}\r\n\r\n",
        ] {
            cut(stream, EventScan::has_failed);
        }
        for stream in [
            "data: {\"a\":{\"error\":1}}\n\n",
            "data: {\"text\":\"data: {\\\"error\\\":1\"}\n\n",
            ": {\"error\":1}\n\n",
        ] {
            cut(stream, |scan| !scan.has_failed());
        }
    }

    #[test]
    fn an_error_event_starts_on_a_boundary() {
        assert_eq!(scan(&[]).append("data: x\n\n"), "data: x\n\n");
        assert_eq!(scan(&[b"data: a\n\n"]).append("E"), "E");
        assert_eq!(scan(&[b"data: a\r\n\r\n"]).append("E"), "E");
        assert_eq!(scan(&[b"data: a\n"]).append("E"), "\n\nE");
        assert_eq!(scan(&[b"data: {\"a"]).append("E"), "\n\nE");
        assert_eq!(scan(&[b"data: {\"a\xc3"]).append("E"), "\n\nE");
    }
}
