//! Where the JSON object of a body of unknown length ends.

use crate::http::reply::Failure;

/// A body that goes on after its object, which nobody inspects.
pub fn goes_on() -> Failure {
    Failure::bad_request(
        "invalid_json",
        "The request body goes on after its JSON object.",
    )
}

/// Finds the end of the top-level JSON object in a body of unknown length.
#[derive(Debug, Default)]
pub struct ValueScan {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// Whether the object is complete.
    pub done: bool,
}

impl ValueScan {
    /// Looks at a further part.
    ///
    /// # Errors
    /// 400 for anything but white space after the object.
    pub fn feed(&mut self, part: &[u8]) -> Result<(), Failure> {
        for &byte in part {
            if self.done {
                if !byte.is_ascii_whitespace() {
                    return Err(goes_on());
                }
            } else if self.in_string {
                self.step_in_string(byte);
            } else {
                self.step(byte);
            }
        }
        Ok(())
    }

    fn step_in_string(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.in_string = false,
            _ => {}
        }
    }

    fn step(&mut self, byte: u8) {
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.done = self.depth == 0;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_value_is_found_wherever_the_body_is_cut() {
        let body = br#" {"a":"}\"]","b":[1,{"c":2}]}  "#;
        for cut in 0..body.len() {
            let mut scan = ValueScan::default();
            scan.feed(&body[..cut]).unwrap();
            assert_eq!(scan.done, cut >= body.len() - 2, "cut at {cut}");
            scan.feed(&body[cut..]).unwrap();
            assert!(scan.done);
        }
        let mut scan = ValueScan::default();
        assert_eq!(scan.feed(b"{}x").unwrap_err().status, 400);
    }
}
