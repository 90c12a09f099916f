//! A verified body on its way to the worker.
//!
//! Of a large chunked body the part after its JSON object is read only while it is forwarded. That
//! may be white space, which goes on too; anything else ends the request, because nobody inspected
//! it.

use bytes::Bytes;

use crate::http::{
    body::{Body, Lease, Rest},
    reply::Failure,
};

/// The bytes that were inspected, and the white space after them.
pub struct PassingBody {
    inspected: Bytes,
    rest: Option<Rest>,
    tail: Vec<u8>,
    _lease: Lease,
}

impl PassingBody {
    pub fn new(body: Body) -> Self {
        Self {
            inspected: body.bytes,
            rest: body.rest,
            tail: Vec::new(),
            _lease: body.lease,
        }
    }

    /// Bytes of the whole body; `None` before its end is known.
    pub fn length(&self) -> Option<usize> {
        self.rest.is_none().then_some(self.inspected.len())
    }

    /// Takes a part of what Pingora reads while it forwards. Of a body that was read to its end that
    /// is what is known already.
    ///
    /// # Errors
    /// As [`Rest::pass`].
    pub fn append(&mut self, part: &[u8]) -> Result<(), Failure> {
        if let Some(rest) = &mut self.rest {
            rest.pass(part)?;
            self.tail.extend_from_slice(part);
        }
        Ok(())
    }

    /// What an error of the client's connection means to the client.
    pub fn failure(&self, error: &pingora::Error) -> Failure {
        let rest = self.rest.as_ref();
        rest.map_or_else(Failure::client_left, |rest| rest.failure(error))
    }

    /// The body to the last byte that came.
    pub fn whole(&self) -> Bytes {
        if self.tail.is_empty() {
            return self.inspected.clone();
        }
        [&*self.inspected, &*self.tail].concat().into()
    }
}
