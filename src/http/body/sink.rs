//! Where the parts of a request body go while it is read.
//!
//! Decides what is kept of each part, and where a body without a length has its end. It must never
//! keep more than the limits allow.

use bytes::{Bytes, BytesMut};

use super::{
    Lease, ReadLimits,
    decode::{Coding, Decoding},
    value_scan::ValueScan,
};
use crate::http::reply::Failure;

/// Bytes that a body gets room for before any of it has come.
const FIRST_ROOM: usize = 64 * 1024;

/// A body as far as it has come.
pub enum Sink {
    /// Sent as it is.
    Plain(Plain),
    /// In a content coding.
    Coded(Box<Decoding>),
}

/// A body that is kept byte for byte.
pub struct Plain {
    bytes: BytesMut,
    /// Looks for the end of a body whose length is not known.
    scan: Option<ValueScan>,
    lease: Lease,
    max_body: usize,
}

impl Sink {
    pub fn new(
        coding: Option<Coding>,
        length: Option<usize>,
        limits: ReadLimits,
        lease: Lease,
    ) -> Self {
        match coding {
            Some(coding) => Self::Coded(Box::new(Decoding::new(coding, limits, lease))),
            None => Self::Plain(Plain {
                bytes: BytesMut::with_capacity(length.unwrap_or(8 * 1024).min(FIRST_ROOM)),
                scan: length.is_none().then(ValueScan::default),
                lease,
                max_body: limits.max_body,
            }),
        }
    }

    /// Takes the next part.
    ///
    /// # Errors
    /// 400 for a part that cannot belong to a body, 413 or 503 for more than the limits allow.
    pub async fn take(self, part: Bytes) -> Result<Self, Failure> {
        match self {
            Self::Plain(mut plain) => {
                plain.take(&part)?;
                Ok(Self::Plain(plain))
            }
            Self::Coded(decoding) => {
                let decoding = decoding.feed(part).await?;
                Ok(Self::Coded(Box::new(decoding)))
            }
        }
    }

    /// Whether what has come says that it is all.
    pub fn is_whole(&self) -> bool {
        match self {
            Self::Plain(plain) => plain.scan.as_ref().is_some_and(|scan| scan.done),
            Self::Coded(decoding) => decoding.ended(),
        }
    }

    /// The body, decoded, and what it holds of the budget.
    ///
    /// # Errors
    /// 400 for a coded body that is not whole.
    pub fn finish(self) -> Result<(Bytes, Lease), Failure> {
        match self {
            Self::Plain(plain) => Ok((plain.bytes.freeze(), plain.lease)),
            Self::Coded(decoding) => decoding.finish(),
        }
    }
}

impl Plain {
    fn take(&mut self, part: &[u8]) -> Result<(), Failure> {
        let all = self.bytes.len() + part.len();
        if all > self.max_body {
            return Err(Failure::too_large(self.max_body, None));
        }
        self.lease.hold(all)?;
        self.bytes.extend_from_slice(part);
        match &mut self.scan {
            Some(scan) => scan.feed(part),
            None => Ok(()),
        }
    }
}
