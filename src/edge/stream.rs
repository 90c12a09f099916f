//! What is known of an event stream while its bytes pass unchanged.

/// Bytes of the stream's end that are remembered: enough for the last event and its line ends.
const REMEMBERED: usize = 32;

/// The end of an SSE stream so far.
#[derive(Debug, Default)]
pub struct StreamTail {
    tail: Vec<u8>,
}

impl StreamTail {
    /// Looks at bytes on their way to the client. Constant work for any length.
    pub fn pass(&mut self, bytes: &[u8]) {
        if let Some(end) = bytes.len().checked_sub(REMEMBERED) {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[end..]);
            return;
        }
        self.tail.extend_from_slice(bytes);
        let surplus = self.tail.len().saturating_sub(REMEMBERED);
        self.tail.drain(..surplus);
    }

    /// Whether the stream has ended as it should: with `data: [DONE]`.
    pub fn is_complete(&self) -> bool {
        let Some(last_line) = self
            .tail
            .trim_ascii_end()
            .rsplit(|byte| matches!(byte, b'\n' | b'\r'))
            .next()
        else {
            return false;
        };
        last_line
            .strip_prefix(b"data:")
            .is_some_and(|data| data.trim_ascii_start() == b"[DONE]")
    }

    /// `event`, preceded by what ends the event that broke off, if one did.
    pub fn append(&self, event: &str) -> String {
        let at_boundary = self.tail.is_empty()
            || [&b"\n\n"[..], b"\r\r", b"\n\r\n"]
                .iter()
                .any(|end| self.tail.ends_with(end));
        if at_boundary {
            event.to_owned()
        } else {
            format!("\n\n{event}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(parts: &[&str]) -> StreamTail {
        let mut tail = StreamTail::default();
        for part in parts {
            tail.pass(part.as_bytes());
        }
        tail
    }

    #[test]
    fn completion_is_seen_however_the_stream_is_cut() {
        for stream in [
            "data: {\"a\":1}\n\ndata: [DONE]\n\n",
            "data: {\"a\":1}\r\n\r\ndata:[DONE]\r\n\r\n",
            "data: [DONE]",
        ] {
            for cut in 0..=stream.len() {
                assert!(
                    tail(&[&stream[..cut], &stream[cut..]]).is_complete(),
                    "{stream:?} cut at {cut}"
                );
            }
            let bytes: Vec<String> = stream.chars().map(String::from).collect();
            assert!(tail(&bytes.iter().map(String::as_str).collect::<Vec<_>>()).is_complete());
        }
        for stream in [
            "",
            "data: {\"a\":\"data: [DONE]\"}\n\n",
            "data: [DONE",
            "event: [DONE]\n\n",
            "xdata: [DONE]\n\n",
        ] {
            assert!(!tail(&[stream]).is_complete(), "{stream:?}");
        }
    }

    #[test]
    fn an_error_event_starts_on_a_boundary() {
        assert_eq!(tail(&[]).append("data: x\n\n"), "data: x\n\n");
        assert_eq!(tail(&["data: a\n\n"]).append("E"), "E");
        assert_eq!(tail(&["data: a\r\n\r\n"]).append("E"), "E");
        assert_eq!(tail(&["data: a\n"]).append("E"), "\n\nE");
        assert_eq!(tail(&["data: {\"a"]).append("E"), "\n\nE");
    }
}
