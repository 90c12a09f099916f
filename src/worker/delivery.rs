//! How the engine is told the rank, and the edge told where a request ran.
//!
//! An internal header goes on only where it was found genuine, and only in its own spelling: some
//! servers read `_` for `-`. A header in which an agent program names a parent never goes on: edges
//! tell workers a parent in the signed header only, and no signature covers those.

use http::{HeaderName, header};
use pingora::{
    Result,
    http::{RequestHeader, ResponseHeader},
};

use crate::wire::headers::{DATA_PARALLEL_RANK, KINDRED_RANK, is_internal, names_a_parent};

/// Removes every internal header and every parent's, in every spelling, but those of `kept` in their
/// own spelling.
pub fn keep(head: &mut RequestHeader, kept: &[&str]) {
    let goes = |name: &&HeaderName| {
        let bytes = name.as_str().as_bytes();
        names_a_parent(bytes) || (is_internal(bytes) && !kept.contains(&name.as_str()))
    };
    let names: Vec<_> = head.headers.keys().filter(goes).cloned().collect();
    for name in names {
        head.remove_header(&name);
    }
}

/// Sets the rank header that vLLM and SGLang honour.
pub fn by_header(head: &mut RequestHeader, rank: Option<u32>) -> Result<()> {
    match rank {
        Some(rank) => head.insert_header(DATA_PARALLEL_RANK, rank.to_string()),
        None => Ok(()),
    }
}

/// Frames the body that was read and inspected, whatever framing it came in; in chunks where its
/// length is not known before its end.
pub fn frame(head: &mut RequestHeader, length: Option<usize>) -> Result<()> {
    head.remove_header(&header::TRANSFER_ENCODING);
    head.remove_header(&header::CONTENT_LENGTH);
    head.remove_header(&header::EXPECT);
    match length {
        Some(length) => head.insert_header(header::CONTENT_LENGTH, length),
        None => head.insert_header(header::TRANSFER_ENCODING, "chunked"),
    }
}

/// Tells the edge on which rank its request ran.
pub fn tell_edge(head: &mut ResponseHeader, rank: Option<u32>) -> Result<()> {
    head.remove_header(KINDRED_RANK);
    match rank {
        Some(rank) => head.insert_header(KINDRED_RANK, rank.to_string()),
        None => Ok(()),
    }
}
