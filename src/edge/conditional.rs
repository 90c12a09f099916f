//! Conditional disaggregation: a request whose generation instance holds nearly all of its prompt
//! has no context leg (specification section 4.6).
//!
//! Decides before the context leg, by an instance that is picked and reserved then and serves the
//! generation leg either way. It only ever decides about requests whose context leg would come
//! first.

use super::{generation_leg, live::Live, plan::Plan, request::Request};
use crate::{
    fleet::InstanceId,
    http::reply::Failure,
    routing::Pick,
    telemetry::{
        self,
        labels::{ConditionalWay, FleetLabel},
    },
};

/// The generation instance of a request, before its context leg.
pub enum Reserved {
    /// It is chosen after the context leg.
    Nothing,
    /// It serves the request whole.
    Whole(Pick),
    /// It waits for a context leg, which should be somewhere else.
    Waiting {
        pick: Pick,
        elsewhere: Option<InstanceId>,
    },
}

impl Reserved {
    /// Reserves an instance where the configuration asks for it.
    ///
    /// # Errors
    /// 503 without an instance.
    pub fn make(live: &Live, request: &Request<'_>, plan: &mut Plan) -> Result<Self, Failure> {
        let settings = live.edge.conditional_disagg.as_ref();
        let pair = request.pool.pair();
        let pair = pair.filter(|pair| pair.generation.kv_cache_aware().is_some());
        let (Some(settings), Some(pair)) = (settings, pair) else {
            return Ok(Self::Nothing);
        };
        plan.fleet = FleetLabel::Generation;
        let pick = generation_leg::pick(live, request, None)?;
        let ways = &telemetry::metrics().conditional_requests;
        if !pick.needs_context(settings.max_local_prefill_length.into()) {
            ways.inc(ConditionalWay::Local);
            return Ok(Self::Whole(pick));
        }
        ways.inc(ConditionalWay::Disaggregated);
        plan.fleet = FleetLabel::Context;
        // The same worker may stand in both fleets.
        let context = pair.context.fleet();
        let same = context.at(&pick.load.instance().address);
        let elsewhere = same.map(|instance| instance.id);
        Ok(Self::Waiting { pick, elsewhere })
    }
}
