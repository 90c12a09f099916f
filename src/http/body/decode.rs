//! Request bodies in a content coding, decoded as they come.
//!
//! Decides which codings are taken and how far one is decoded: what comes out is bounded by the same
//! limits as a body that was sent as it is, and is counted while it grows, so that a small body that
//! unfolds into a huge one costs no more than a huge one. It must never pass on data that is not
//! whole, nor anything after the end of the coded data.

use brotli::{BrotliDecompressStream, BrotliResult, BrotliState, HeapAlloc, HuffmanCode};
use bytes::{Bytes, BytesMut};
use flate2::{Decompress, FlushDecompress, Status};
use http::{HeaderMap, header};
use tokio::task::spawn_blocking;
use zstd::{
    stream::raw::{Decoder as Zstd, InBuffer, Operation, OutBuffer},
    zstd_safe::DParameter,
};

use super::{Lease, ReadLimits};
use crate::http::reply::Failure;

/// Bytes that are decoded at a time.
const STEP: usize = 64 * 1024;
/// Parts of a body from this size on are decoded on threads that carry no requests.
const LARGE: usize = 4 * 1024;
/// The largest window of zstd, as a power of two: what RFC 9659 allows for this use.
const ZSTD_WINDOW_LOG: u32 = 23;
/// Window of gzip and zlib, as a power of two: the largest.
const ZLIB_WINDOW: u8 = 15;

/// A content coding of request bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Coding {
    /// The coding that a request names; `None` for a body that is sent as it is.
    ///
    /// # Errors
    /// 415 for a coding that is not taken, or more than one.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, Failure> {
        let values = headers.get_all(header::CONTENT_ENCODING).iter();
        let mut names = values
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case(b"identity"));
        let Some(name) = names.next() else {
            return Ok(None);
        };
        let coding = match name.to_ascii_lowercase().as_slice() {
            b"gzip" | b"x-gzip" => Self::Gzip,
            b"deflate" => Self::Deflate,
            b"br" => Self::Brotli,
            b"zstd" => Self::Zstd,
            other => {
                let other: String = String::from_utf8_lossy(other).chars().take(64).collect();
                let what = format!("in the content coding {other:?}");
                return Err(Failure::unsupported_encoding(&what));
            }
        };
        if names.next().is_some() {
            return Err(Failure::unsupported_encoding("in several content codings"));
        }
        Ok(Some(coding))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }
}

/// A body that is being decoded.
pub struct Decoding {
    coding: Coding,
    engine: Engine,
    decoded: BytesMut,
    lease: Lease,
    max_body: usize,
    ended: bool,
}

impl Decoding {
    pub fn new(coding: Coding, limits: ReadLimits, lease: Lease) -> Self {
        Self {
            coding,
            engine: Engine::new(coding),
            decoded: BytesMut::new(),
            lease,
            max_body: limits.max_body,
            ended: false,
        }
    }

    /// Whether the coded data has ended.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Decodes the next part of the body. Cancel-safe in that nothing of it is left running for long;
    /// the decoding itself is lost.
    ///
    /// # Errors
    /// 400 for data that is not in the coding, 413 or 503 for more than the limits allow.
    pub async fn feed(mut self, part: Bytes) -> Result<Self, Failure> {
        if part.len() < LARGE {
            self.take(&part)?;
            return Ok(self);
        }
        let work = spawn_blocking(move || self.take(&part).map(|()| self));
        let done = work.await;
        done.unwrap_or_else(|_| Err(Failure::internal("The body could not be decoded.")))
    }

    /// The whole body and what it holds of the budget.
    ///
    /// # Errors
    /// 400 for data that is not whole.
    pub fn finish(self) -> Result<(Bytes, Lease), Failure> {
        if !self.ended {
            return Err(self.broken("ends before the coded data does"));
        }
        Ok((self.decoded.freeze(), self.lease))
    }

    fn take(&mut self, mut part: &[u8]) -> Result<(), Failure> {
        let mut room = vec![0; STEP];
        while !part.is_empty() {
            if self.ended {
                return Err(self.broken("goes on after the end of the coded data"));
            }
            loop {
                let step = self.engine.step(part, &mut room);
                let step = step.ok_or_else(|| self.broken("is not in the coding it names"))?;
                part = part.get(step.read..).unwrap_or_default();
                self.keep(room.get(..step.written).unwrap_or_default())?;
                self.ended = step.ended;
                if step.ended || part.is_empty() && step.written < room.len() {
                    break;
                }
                if step.read == 0 && step.written == 0 {
                    return Err(self.broken("is not in the coding it names"));
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, decoded: &[u8]) -> Result<(), Failure> {
        let all = self.decoded.len() + decoded.len();
        if all > self.max_body {
            return Err(Failure::too_large_decoded(self.max_body));
        }
        self.lease.hold(all)?;
        self.decoded.extend_from_slice(decoded);
        Ok(())
    }

    fn broken(&self, how: &str) -> Failure {
        let coding = self.coding.name();
        Failure::bad_request(
            "invalid_content_encoding",
            format!("The request body's Content-Encoding is {coding}, and the body {how}."),
        )
        .param(Some("content-encoding".to_owned()))
    }
}

/// What one step did.
struct Step {
    read: usize,
    written: usize,
    ended: bool,
}

enum Engine {
    Zlib(Decompress),
    /// `deflate` means zlib; some send it without zlib's two bytes in front, and the first byte tells.
    Undecided,
    Brotli(Box<Brotli>),
    /// `None` where there was no memory for it.
    Zstd(Option<Zstd<'static>>),
}

type Brotli = BrotliState<HeapAlloc<u8>, HeapAlloc<u32>, HeapAlloc<HuffmanCode>>;

impl Engine {
    fn new(coding: Coding) -> Self {
        match coding {
            Coding::Gzip => Self::Zlib(Decompress::new_gzip(ZLIB_WINDOW)),
            Coding::Deflate => Self::Undecided,
            Coding::Brotli => Self::Brotli(Box::new(BrotliState::new(
                HeapAlloc::new(0),
                HeapAlloc::new(0),
                HeapAlloc::new(HuffmanCode::default()),
            ))),
            Coding::Zstd => Self::Zstd(zstd()),
        }
    }

    /// Decodes some of `part` into `room`; `None` for data that cannot be decoded.
    fn step(&mut self, part: &[u8], room: &mut [u8]) -> Option<Step> {
        if let Self::Undecided = self {
            // Compression method 8 in the lower half: no block of raw deflate that an encoder makes
            // begins so.
            let zlib = part.first()? & 0x0f == 8;
            *self = Self::Zlib(Decompress::new(zlib));
        }
        match self {
            Self::Zlib(zlib) => step_zlib(zlib, part, room),
            Self::Brotli(brotli) => step_brotli(brotli, part, room),
            Self::Zstd(zstd) => step_zstd(zstd.as_mut()?, part, room),
            Self::Undecided => None,
        }
    }
}

fn zstd() -> Option<Zstd<'static>> {
    let mut zstd = Zstd::new().ok()?;
    let window = DParameter::WindowLogMax(ZSTD_WINDOW_LOG);
    zstd.set_parameter(window).ok()?;
    Some(zstd)
}

fn step_zlib(zlib: &mut Decompress, part: &[u8], room: &mut [u8]) -> Option<Step> {
    let before = (zlib.total_in(), zlib.total_out());
    let status = zlib.decompress(part, room, FlushDecompress::None).ok()?;
    Some(Step {
        read: usize::try_from(zlib.total_in() - before.0).ok()?,
        written: usize::try_from(zlib.total_out() - before.1).ok()?,
        ended: status == Status::StreamEnd,
    })
}

fn step_brotli(brotli: &mut Brotli, part: &[u8], room: &mut [u8]) -> Option<Step> {
    let (mut read, mut written, mut total) = (0, 0, 0);
    let result = BrotliDecompressStream(
        &mut part.len(),
        &mut read,
        part,
        &mut room.len(),
        &mut written,
        room,
        &mut total,
        brotli,
    );
    match result {
        BrotliResult::ResultFailure => None,
        result => Some(Step {
            read,
            written,
            ended: matches!(result, BrotliResult::ResultSuccess),
        }),
    }
}

fn step_zstd(zstd: &mut Zstd<'_>, part: &[u8], room: &mut [u8]) -> Option<Step> {
    let mut input = InBuffer::around(part);
    let mut output = OutBuffer::around(room);
    let left = zstd.run(&mut input, &mut output).ok()?;
    Some(Step {
        read: input.pos,
        written: output.pos(),
        ended: left == 0,
    })
}

#[cfg(test)]
mod tests;
