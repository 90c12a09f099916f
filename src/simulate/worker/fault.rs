//! Misbehaviour on demand, so that tests and operators can see what a failure looks like.
//!
//! Faults are named in a text such as `delay=250ms, status=503`, given with one request in its
//! `x-simulate` header, for the next requests by `POST /simulate/fault`, or in the demo by
//! `POST /demo/faults` of the operator's port. The first way reaches a worker directly only: the edge
//! forwards no client's headers. A worker misbehaves only when told to.

mod plan;

use std::{str::FromStr, time::Duration};

use bytesize::ByteSize;
use http::StatusCode;
use thiserror::Error;

pub use plan::{Control, Health, Manners};

/// The header that names the faults of one request.
pub const HEADER: &str = "x-simulate";

/// The largest event that can be asked for.
const LARGEST_EVENT: u64 = 64 << 20;
/// Most choices that can be asked for.
const MOST_CHOICES: u32 = 64;

/// Every fault: how it is written, and what it does.
pub const KNOWN: [(&str, &str); 17] = [
    ("delay=250ms", "waits before anything else"),
    ("status=503", "answers with that status"),
    ("reset", "closes the connection instead of an answer"),
    ("final", "the answer is complete with its first token"),
    ("choices=2", "the answer has that many choices"),
    ("without=usage", "leaves out every field of that name"),
    ("null=usage", "makes every field of that name null"),
    (
        "invalid-json",
        "cuts the answer, of a stream its first event, in the middle",
    ),
    (
        "die-after=3",
        "closes the connection after that many events, or in the middle of an answer",
    ),
    (
        "die-in=3",
        "closes the connection in the middle of that event, counted from 1",
    ),
    (
        "die-before-done",
        "closes the connection when only [DONE] is missing",
    ),
    (
        "stall-after=3",
        "nothing more comes after that many events, or after half of an answer",
    ),
    (
        "error-after=3",
        "an error event comes after that many events, and then [DONE]",
    ),
    (
        "pause=50ms",
        "waits before each event, or before each half of an answer",
    ),
    ("event=1MiB", "the first event of a stream has that size"),
    ("gzip", "the answer is compressed"),
    (
        "line-ends=crlf",
        "events end with CRLF; with `bytes` each byte is written by itself",
    ),
];

/// How one request is to go wrong. The default is: not at all. [`KNOWN`] says what each does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    pub delay: Option<Duration>,
    pub status: Option<StatusCode>,
    pub reset: bool,
    pub finish_at_once: bool,
    pub choices: Option<u32>,
    /// Names of fields that are left out.
    pub without: Vec<String>,
    /// Names of fields that are null.
    pub null: Vec<String>,
    pub invalid_json: bool,
    pub die_after: Option<u32>,
    pub die_in: Option<u32>,
    pub die_before_done: bool,
    pub stall_after: Option<u32>,
    pub error_after: Option<u32>,
    pub pause: Option<Duration>,
    /// Bytes of the first event.
    pub event: Option<usize>,
    pub gzip: bool,
    pub crlf: bool,
    pub bytewise: bool,
}

/// A fault that this worker does not know.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown fault {0:?}: known are {known}", known = known())]
pub struct UnknownFault(String);

fn known() -> String {
    KNOWN.map(|(form, _)| form).join(", ")
}

impl FromStr for Faults {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut faults = Self::default();
        let words = text.split(',').map(str::trim);
        for word in words.filter(|word| !word.is_empty()) {
            faults
                .add(word)
                .ok_or_else(|| UnknownFault(word.to_owned()))?;
        }
        Ok(faults)
    }
}

impl Faults {
    fn add(&mut self, word: &str) -> Option<()> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "delay" => self.delay = Some(humantime::parse_duration(value).ok()?),
            "pause" => self.pause = Some(humantime::parse_duration(value).ok()?),
            "status" => {
                let status: StatusCode = value.parse().ok()?;
                self.status = Some(status).filter(|status| !status.is_informational());
                self.status?;
            }
            "choices" => {
                let choices = value.parse().ok()?;
                self.choices = Some(choices).filter(|choices| (1..=MOST_CHOICES).contains(choices));
                self.choices?;
            }
            "event" => {
                let size = value.parse::<ByteSize>().ok()?.as_u64();
                let size = Some(size).filter(|size| *size <= LARGEST_EVENT)?;
                self.event = Some(usize::try_from(size).ok()?);
            }
            "without" if !value.is_empty() => self.without.push(value.to_owned()),
            "null" if !value.is_empty() => self.null.push(value.to_owned()),
            "die-after" => self.die_after = Some(value.parse().ok()?),
            "die-in" => self.die_in = Some(value.parse().ok()?),
            "stall-after" => self.stall_after = Some(value.parse().ok()?),
            "error-after" => self.error_after = Some(value.parse().ok()?),
            "line-ends" if value == "crlf" => self.crlf = true,
            "line-ends" if value == "bytes" => self.bytewise = true,
            name if value.is_empty() => *self.switch(name)? = true,
            _ => return None,
        }
        Some(())
    }

    fn switch(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "reset" => &mut self.reset,
            "final" => &mut self.finish_at_once,
            "invalid-json" => &mut self.invalid_json,
            "die-before-done" => &mut self.die_before_done,
            "gzip" => &mut self.gzip,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_faults_is_read() {
        let faults: Faults = "status=503, delay=250ms,die-after=3, final"
            .parse()
            .expect("known faults");
        assert_eq!(faults.status, Some(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(faults.delay, Some(Duration::from_millis(250)));
        assert_eq!(faults.die_after, Some(3));
        assert!(faults.finish_at_once && !faults.reset);
        assert_eq!("".parse(), Ok(Faults::default()));
        let faults: Faults = "without=a,without=b,null=c,event=2KiB"
            .parse()
            .expect("known");
        assert_eq!((faults.without.len(), faults.null.len()), (2, 1));
        assert_eq!(faults.event, Some(2048));
    }

    #[test]
    fn every_known_fault_can_be_given_and_does_something() {
        for (form, about) in KNOWN {
            let faults: Faults = form.parse().expect(form);
            assert_ne!(faults, Faults::default(), "{form}: {about}");
        }
    }

    #[test]
    fn an_unknown_fault_is_refused() {
        for text in [
            "explode",
            "status=9",
            "status=100",
            "delay=soon",
            "reset=1",
            "choices=0",
            "choices=65",
            "event=1GiB",
            "without=",
            "line-ends=cr",
        ] {
            let error = text.parse::<Faults>().expect_err(text);
            assert_eq!(error, UnknownFault(text.to_owned()));
            assert!(error.to_string().contains("die-before-done"));
        }
    }
}
