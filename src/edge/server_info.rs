//! What context instances say of themselves at `/server_info`, as far as generation-first needs it.
//!
//! A generation request that comes first names the endpoint at which its KV cache can be asked for
//! (specification section 4.5), so it is read before the legs are sent and believed for a while. A
//! failed request makes it be read anew: the instance may have come back with another endpoint. What
//! names no endpoint is never kept, and nobody waits for an answer longer than a short deadline.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::time::timeout;

use super::{
    destination::Destination,
    failure::{no_server_info, unusable_server_info},
    live::Live,
    retry::{Cause, Failed},
};
use crate::{
    fleet::{Instance, InstanceId},
    http::upstream::{Call, CallError, Upstreams},
    wire::disagg::ContextEndpoint,
};

/// How long an answer is believed.
const LIFETIME: Duration = Duration::from_secs(10);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// An answer that names no endpoint, which is as good as a 502; another instance's may name one.
const UNUSABLE: Cause = Cause::Refused {
    status: 502,
    wait: None,
};
/// Bytes of an answer at most.
const MAX_ANSWER: usize = 1024 * 1024;

/// The answers that are believed.
#[derive(Default)]
pub struct ServerInfos {
    known: Mutex<HashMap<InstanceId, Known>>,
}

struct Known {
    endpoint: Arc<ContextEndpoint>,
    read: Instant,
}

impl ServerInfos {
    /// Where the caches of `instance` are asked for.
    ///
    /// # Errors
    /// 502 for an instance that does not tell; another one may.
    pub async fn endpoint(
        &self,
        upstreams: &Upstreams,
        live: &Live,
        instance: &Instance,
    ) -> Result<Arc<ContextEndpoint>, Failed> {
        if let Some(endpoint) = self.believed(instance.id) {
            return Ok(endpoint);
        }
        let read = read(upstreams, live, instance).await;
        match &read {
            Ok(endpoint) => self.remember(live, instance.id, endpoint.clone()),
            Err(_) => self.forget(instance.id),
        }
        read
    }

    /// Makes the next request read the answer of this instance anew.
    pub fn forget(&self, id: InstanceId) {
        self.known.lock().remove(&id);
    }

    /// An answer young enough. An old one is believed by everybody but the first who notices: that
    /// one reads it anew, so that an instance is not asked by all requests at once.
    fn believed(&self, id: InstanceId) -> Option<Arc<ContextEndpoint>> {
        let mut known = self.known.lock();
        let known = known.get_mut(&id)?;
        if known.read.elapsed() < LIFETIME {
            return Some(known.endpoint.clone());
        }
        known.read = Instant::now();
        None
    }

    fn remember(&self, live: &Live, id: InstanceId, endpoint: Arc<ContextEndpoint>) {
        let fleets: Vec<_> = live.destinations().map(Destination::fleet).collect();
        let most = fleets.iter().map(|fleet| 2 * fleet.instances().len());
        let mut known = self.known.lock();
        if known.len() >= most.sum() {
            known.retain(|id, _| fleets.iter().any(|fleet| fleet.get(*id).is_some()));
        }
        let read = Instant::now();
        known.insert(id, Known { endpoint, read });
    }
}

async fn read(
    upstreams: &Upstreams,
    live: &Live,
    instance: &Instance,
) -> Result<Arc<ContextEndpoint>, Failed> {
    let call = Call::get(&instance.address, "/server_info", MAX_ANSWER);
    let timeouts = &live.config.timeouts;
    let answer = timeout(PATIENCE, async {
        match upstreams.call(&call, timeouts).await {
            Err(CallError::Unheard) => {
                let again = Call {
                    fresh: true,
                    ..call
                };
                upstreams.call(&again, timeouts).await
            }
            other => other,
        }
    });
    let answer = answer
        .await
        .unwrap_or(Err(CallError::Timeout))
        .map_err(|error| Failed {
            failure: no_server_info(error),
            // What is not HTTP here may be so elsewhere.
            cause: Some(Cause::of_error(error).unwrap_or(UNUSABLE)),
        })?;
    let unusable = |failure| Failed {
        failure,
        cause: Some(UNUSABLE),
    };
    if answer.status != 200 {
        let status = format!("it answered with status {}", answer.status);
        return Err(unusable(no_server_info(status)));
    }
    ContextEndpoint::of_server_info(&answer.body)
        .map(Arc::new)
        .map_err(|error| unusable(unusable_server_info(error)))
}
