//! Writes a generation answer to the client where Pingora's proxy path does not.
//!
//! It does with the answer what the proxy path's filters do, with the same `Relay`: the client sees
//! no difference between the two ways. It must notice at once when the client leaves.

use http::{Version, header};
use pingora::{BError, Error, ErrorType, Result, http::ResponseHeader, proxy::Session};

use super::Ready;
use crate::{
    edge::plan::Plan,
    http::{body::ClientWatch, reply},
};

/// Writes the whole answer as it comes.
///
/// # Errors
/// Upstream's where the answer breaks off, the client's where it has left; the caller lets Pingora
/// end the request with them.
pub async fn deliver(
    session: &mut Session,
    plan: &mut Plan,
    ready: Ready<'_>,
    watch: ClientWatch,
) -> Result<()> {
    let Ready {
        mut call,
        mut head,
        mut early,
    } = ready;
    if let Some(leg) = &mut plan.generation {
        leg.settle();
    }
    plan.relay_head(&mut head)?;
    frame(&mut head)?;
    reply::frame_for_old_clients(session, &mut head);
    let written = session.write_response_header(Box::new(head), false).await;
    written.map_err(|error| error.into_down())?;
    loop {
        let mut body = match early.pop_front() {
            Some(part) => Some(part),
            None => tokio::select! {
                biased;
                part = call.next() => part?,
                () = watch.left(session) => return Err(client_left()),
            },
        };
        let end = body.is_none();
        plan.relay(&mut body, end)?;
        let written = session.write_response_body(body, end).await;
        written.map_err(|error| error.into_down())?;
        if end {
            call.release().await;
            return Ok(());
        }
    }
}

/// The answer's length is not known here, whatever framing the worker chose.
fn frame(head: &mut ResponseHeader) -> Result<()> {
    head.set_version(Version::HTTP_11);
    head.remove_header(&header::CONTENT_LENGTH);
    head.insert_header(header::TRANSFER_ENCODING, "chunked")
}

fn client_left() -> BError {
    Error::new_down(ErrorType::ConnectionClosed)
}
