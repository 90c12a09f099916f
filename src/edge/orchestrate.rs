//! Steps 1 to 4 of a request's way: gateway, read, resolve, context leg.
//!
//! Puts them in order and decides what comes next; each step is a part of its own. A client that
//! leaves ends whichever step is under way.

use std::sync::Arc;

use pingora::proxy::Session;

use super::{
    Edge,
    client::Client,
    client_limits,
    conditional::Reserved,
    context_leg::{ContextLeg, FinalAnswer},
    generation_first::GenerationFirst,
    generation_leg::GenerationLeg,
    incoming::Incoming,
    live::Live,
    places,
    plan::Plan,
    pool::{Fleets, Pair},
    request::{self, Request},
    surface::{self, Asked, Told},
};
use crate::{
    http::{
        body::{Lease, Rest},
        guard,
        reply::Failure,
    },
    routing::Exclusion,
    telemetry::labels::{FleetLabel, Route},
    wire::{
        body::BodyView,
        disagg::{Endpoint, ScheduleStyle},
        usage,
    },
};

fn route(endpoint: Endpoint) -> Route {
    match endpoint {
        Endpoint::ChatCompletions => Route::ChatCompletions,
        Endpoint::Completions => Route::Completions,
    }
}

/// What happens after the context leg.
pub enum Next<'u> {
    /// The planned generation leg is sent, once the rest of the client's body is read.
    Generate(Option<Rest>, Client),
    /// The answer is complete.
    Answer(FinalAnswer, Client),
    /// The request needs no leg.
    Tell(Told),
    /// Both legs have done well; the generation answer is to be written.
    Deliver(Box<Incoming<'u>>, Client),
}

impl Edge {
    /// Steps 1 to 4 of a request's way: gateway, read, resolve, context leg.
    ///
    /// # Errors
    /// What the client is to be told.
    pub async fn orchestrate(
        &self,
        session: &mut Session,
        plan: &mut Plan,
    ) -> Result<Next<'_>, Failure> {
        let live = plan.live.clone();
        guard::check(session, &live.config.limits)?;
        let endpoint = match surface::asked(session.req_header())? {
            Asked::Inference(endpoint) => endpoint,
            Asked::Own(own) => return self.tell(session, plan, own).await.map(Next::Tell),
            Asked::Delegation => {
                plan.route = Route::Delegations;
                return self.delegate(session, &live).await.map(Next::Tell);
            }
            Asked::Store(route) => {
                plan.route = Route::Status;
                let config = live.edge.discovery.as_ref();
                let (status, told) = self.discovery.answer(config, session, route).await?;
                return Ok(Next::Tell(Told::result(status, &told)));
            }
            Asked::Options(allow) => {
                return Ok(Next::Tell(surface::options(&live, session, allow)));
            }
        };
        plan.route = route(endpoint);
        let admission = request::admit(session, &live)?;
        plan.client = Some(admission.client.name.clone());
        plan.places.extend(places::of_client(&admission)?);
        client_limits::request(plan, &admission.client)?;
        let body = request::read(session, &live, endpoint, &self.budget).await?;
        let mut client = Client::new(plan, body.watch);
        let view = BodyView::parse(&body.bytes)?;
        let (pool, changed) = request::prepare(&live, &view)?;
        let view = match &changed {
            Some(bytes) => BodyView::parse(bytes)?,
            None => view,
        };
        let head = session.req_header();
        let whose = (&admission, &plan.trace);
        let mut request = request::resolve(head, &live, endpoint, whose, (pool.clone(), view))?;
        plan.understood(&mut request);
        plan.stream = request.stream;
        client.expects(plan);
        if pool.kv_cache_aware().is_some() {
            let tokens = self.tokens(&live, &request);
            let tokens = client.attend(session, tokens).await?;
            request.tokens = tokens;
        }
        client_limits::sub_agent(plan, &admission.client, &request)?;
        client_limits::prompt(plan, &admission.client, &request)?;
        let pair = match &pool.fleets {
            Fleets::Disaggregated(pair) => pair,
            Fleets::Aggregated(destination) => {
                plan.fleet = FleetLabel::Aggregated;
                let place = places::in_fleet(session, &mut client, &live, destination, false);
                plan.places.push(place.await?);
                let leg = GenerationLeg::aggregated(&live, &request, body.lease)?;
                plan.generation = Some(leg);
                return Ok(Next::Generate(body.rest, client));
            }
        };
        plan.fleet = FleetLabel::Context;
        if live.edge.schedule_style == ScheduleStyle::GenerationFirst {
            // In this order everywhere that both are held, so that nobody waits in a circle.
            for destination in [&pair.generation, &pair.context] {
                let place = places::in_fleet(session, &mut client, &live, destination, false);
                plan.places.push(place.await?);
            }
            plan.context_leg_begins();
            let legs = GenerationFirst {
                upstreams: &self.upstreams,
                context: self.context_leg(&live, pair, &request),
                infos: &self.server_infos,
            };
            let incoming = client.attend(session, legs.run(plan, body.lease)).await??;
            return Ok(Next::Deliver(Box::new(incoming), client));
        }
        let next = self.context_first(session, plan, &mut client, (request, pair), body.lease);
        Ok(match next.await? {
            Some(answer) => Next::Answer(answer, client),
            None => Next::Generate(body.rest, client),
        })
    }

    /// The ids of the request's prompt, once the workers were asked about their caches.
    async fn tokens(&self, live: &Live, request: &Request<'_>) -> Option<Arc<[u32]>> {
        live.wait_until_asked().await;
        self.tokens.of(live, request).await
    }

    fn context_leg<'a>(
        &'a self,
        live: &'a Arc<Live>,
        pair: &'a Pair,
        request: &'a Request<'a>,
    ) -> ContextLeg<'a> {
        ContextLeg {
            upstreams: &self.upstreams,
            live,
            destination: &pair.context,
            request,
            caches: &self.caches,
            exclude: None,
        }
    }

    /// Step 4 in its usual order; without a context leg where the generation instance needs none.
    /// Plans the generation leg, unless the answer is complete.
    async fn context_first(
        &self,
        session: &mut Session,
        plan: &mut Plan,
        client: &mut Client,
        (mut request, pair): (Request<'_>, &Pair),
        lease: Lease,
    ) -> Result<Option<FinalAnswer>, Failure> {
        let live = plan.live.clone();
        let mut leg = self.context_leg(&live, pair, &request);
        let mut kept = None;
        match Reserved::make(&live, &request, plan)? {
            Reserved::Nothing => {}
            Reserved::Whole(pick) => {
                let place = places::in_fleet(session, client, &live, &pair.generation, false);
                plan.places.push(place.await?);
                plan.generation = Some(GenerationLeg::whole(&live, &request, pick, lease)?);
                return Ok(None);
            }
            Reserved::Waiting { pick, elsewhere } => {
                leg.exclude = elsewhere.map(Exclusion::rebinding);
                kept = Some(pick);
            }
        }
        let place = places::in_fleet(session, client, &live, &pair.context, false).await?;
        plan.context_leg_begins();
        let context = client.attend(session, leg.run()).await??;
        drop(place);
        plan.context = Some(context.seen.clone());
        if plan.charge.is_some() {
            plan.prompt_tokens = usage::prompt_tokens(&context.body);
        }
        if let Some(answer) = context.finished(&request, live.config.telemetry.internal_fields)? {
            return Ok(Some(answer));
        }
        plan.fleet = FleetLabel::Generation;
        let place = places::in_fleet(session, client, &live, &pair.generation, true).await?;
        plan.places.push(place);
        let generation = GenerationLeg::plan(&live, &mut request, &context, kept, lease)?;
        plan.generation = Some(generation);
        Ok(None)
    }
}
