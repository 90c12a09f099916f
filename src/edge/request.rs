//! What a client's request is, once the gateway has let it in: steps 1 to 3 of its way.

use std::{borrow::Cow, sync::Arc};

use http::header;
use pingora::{http::RequestHeader, proxy::Session};

use super::{
    live::Live,
    pool::{Fleets, Pool},
};
use crate::{
    affinity::{self, Keys},
    gateway::{self, Admission, Isolation, Presented},
    http::{
        body::{self, Body, Budget, ReadLimits},
        certificate,
        reply::Failure,
    },
    telemetry::labels::ClaimOutcome,
    wire::{
        body::BodyView,
        conversation,
        disagg::{Endpoint, ScheduleStyle},
        prompt::Prompt,
        trace::Trace,
    },
};

/// Prefix of the id that a sub-agent without one of its own gets (specification section 5.3).
const SYNTHESISED: &str = "subagent:";

/// A request as the legs need it.
pub struct Request<'a> {
    pub endpoint: Endpoint,
    /// The fleets that serve its model.
    pub pool: Arc<Pool>,
    pub view: BodyView<'a>,
    /// Exactly as in the body that is forwarded: it is signed.
    pub model: Cow<'a, str>,
    /// The session's id as the client knows it; `None` for a request outside any session.
    pub session: Option<String>,
    /// What the workers are told of it.
    pub conversation_id: Option<String>,
    /// The authorised parent.
    pub parent: Option<String>,
    /// What the fleets' tables know the session and its parent by.
    placed: Placed,
    /// Whose requests without a session may join this one's place.
    pub scope: u64,
    /// What workers place a family by, where they are told one: it is signed.
    pub affinity_id: Option<String>,
    /// What became of the claim to one.
    pub claim: ClaimOutcome,
    /// What the answer hands the session's sub-agents.
    pub delegation: Option<String>,
    pub stream: bool,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
    pub prompt: Prompt<'a>,
    /// The prompt's token ids, where a router has a use for them and they are known.
    pub tokens: Option<Arc<[u32]>>,
    /// `conversation_params` as the workers get them, raw JSON.
    pub conversation_params: Option<Cow<'a, str>>,
    /// What its legs carry of its id and its trace.
    pub trace: Arc<Trace>,
}

/// The ids of a session and of its parent, where it is placed by them.
struct Placed {
    conversation: Option<String>,
    parent: Option<String>,
}

impl Request<'_> {
    /// What routing is sticky on in the fleet that answers. An aggregated instance computes the prompt
    /// as well, so a family stays together there in either scope.
    pub fn answering_key(&self, live: &Live) -> Option<&str> {
        let keys = self.keys(live);
        match self.pool.fleets {
            Fleets::Disaggregated(_) => keys.generation,
            Fleets::Aggregated(_) => keys.context,
        }
    }

    /// What routing is sticky on, fleet by fleet.
    pub fn keys(&self, live: &Live) -> Keys<'_> {
        affinity::keys(
            self.placed.conversation.as_deref(),
            self.placed.parent.as_deref(),
            live.edge.affinity.scope,
        )
    }
}

/// What says who sent a request.
pub fn presented(session: &Session) -> Presented<'_> {
    let address = session.client_addr().and_then(|address| address.as_inet());
    Presented {
        address: address.map(|address| address.ip()),
        certificate: certificate::names(session),
        ..Presented::headers(&session.req_header().headers)
    }
}

/// Step 1: removes what a client may not set and finds out who it is.
///
/// # Errors
/// 400 for ids out of bounds, 401 for a client that is not known.
pub fn admit(session: &mut Session, live: &Live) -> Result<Admission, Failure> {
    let admission = live.gateway.admit(&presented(session))?;
    let head = session.req_header_mut();
    for name in &admission.remove {
        head.remove_header(name);
    }
    if let Some(connection) = &admission.connection {
        // A value made of the old one's own tokens always fits.
        let _ = head.insert_header(header::CONNECTION, connection);
    }
    Ok(admission)
}

/// Step 2: reads the body.
///
/// # Errors
/// As [`body::read`].
pub async fn read(
    session: &mut Session,
    live: &Live,
    endpoint: Endpoint,
    budget: &Arc<Budget>,
) -> Result<Body, Failure> {
    let limits = &live.config.limits;
    let limits = ReadLimits {
        max_body: limits.max_body.of(endpoint),
        budget: limits.body_budget,
        deadline: live.config.timeouts.read_body,
        min_rate: live.config.limits.min_body_rate,
    };
    let mut body = body::read(session, limits, budget).await?;
    if live.edge.schedule_style == ScheduleStyle::GenerationFirst {
        body.read_rest(session).await?;
    }
    Ok(body)
}

/// Which fleets serve the model that a body names, and the bytes that go on where they are not the
/// client's own: without what a client may not set, and with the model's own name in place of an
/// alias.
///
/// # Errors
/// 400 for a body without a model or with two readings, 404 for a model that is not served here.
pub fn prepare(live: &Live, view: &BodyView<'_>) -> Result<(Arc<Pool>, Option<Vec<u8>>), Failure> {
    const FIELD: &str = "model";
    let pruned = live.gateway.prune_body(view);
    let asked = view.model()?;
    let pool = live.pools.of_model(&asked);
    let pool = pool.ok_or_else(|| Failure::no_model(&asked))?;
    let Some(model) = pool.model.as_deref().filter(|model| *model != asked) else {
        return Ok((pool.clone(), pruned));
    };
    let model = serde_json::Value::from(model).to_string();
    let renamed = [(FIELD, Some(&*model))];
    let body = match &pruned {
        Some(pruned) => BodyView::parse(pruned)?.splice(&renamed),
        None => view.splice(&renamed),
    };
    Ok((pool.clone(), Some(body)))
}

/// Step 3: session, parent, model, stream.
///
/// # Errors
/// 400 that names the field at fault.
pub fn resolve<'a>(
    head: &RequestHeader,
    live: &Live,
    endpoint: Endpoint,
    (admission, trace): (&Admission, &Arc<Trace>),
    (pool, view): (Arc<Pool>, BodyView<'a>),
) -> Result<Request<'a>, Failure> {
    let own = conversation::resolve(&head.headers, &view)?;
    if let Some(id) = own
        .as_deref()
        .filter(|_| view.present(conversation::PARAMS).is_some())
    {
        // The headers' ids were checked before the body was read.
        live.gateway
            .check_session_id(id, "conversation_params.conversation_id")?;
    }
    let family = live.gateway.authorise(admission, &view, own.as_deref())?;
    let parent = family.parent;
    let synthesise = || format!("{SYNTHESISED}{}", uuid::Uuid::new_v4());
    let conversation_id = own.or_else(|| parent.is_some().then(synthesise));
    let session = conversation_id.clone();
    let claimed = conversation_id
        .as_deref()
        .map(|id| conversation::as_claimed(&view, id));
    let isolated = live.gateway.isolation().map(|isolation| Isolated {
        isolation,
        client: &admission.client,
    });
    let placed = Placed {
        conversation: key(isolated.as_ref(), claimed.as_deref()),
        parent: key(isolated.as_ref(), parent.as_deref()),
    };
    let affinity_id = match &isolated {
        Some(isolated) if live.edge.affinity.parent_header.is_some() => parent
            .as_deref()
            .or(claimed.as_deref())
            .map(|id| isolated.opaque(id)),
        _ => parent.clone(),
    };
    let conversation_id = match &isolated {
        Some(isolated) if isolated.isolation.namespaced => claimed.map(|id| isolated.opaque(&id)),
        _ => conversation_id,
    };
    refuse_template(&view, live)?;
    let stream = view.stream()?;
    refuse_stream_options(&view, stream)?;
    refuse_messages(&view, endpoint)?;
    Ok(Request {
        endpoint,
        pool,
        model: view.model()?,
        conversation_params: conversation::forwarded_params(&view, conversation_id.as_deref()),
        conversation_id,
        parent,
        scope: isolated.map_or(0, |isolated| Isolation::scope(isolated.client)),
        placed,
        affinity_id,
        session,
        delegation: family.delegation,
        claim: family.outcome,
        stream,
        include_usage: view.include_usage(),
        prompt: Prompt::of(&view),
        tokens: None,
        trace: trace.clone(),
        view,
    })
}

/// The client whose sessions are kept apart from those of others.
struct Isolated<'a> {
    isolation: &'a Isolation,
    client: &'a gateway::Client,
}

impl Isolated<'_> {
    fn opaque(&self, id: &str) -> String {
        self.isolation.opaque(self.client, id)
    }
}

/// What the tables of the fleets know a session by.
fn key(isolated: Option<&Isolated<'_>>, id: Option<&str>) -> Option<String> {
    let id = id.filter(|id| !id.is_empty())?;
    Some(match isolated {
        Some(isolated) => Isolation::key(isolated.client, id),
        None => id.to_owned(),
    })
}

/// A chat without a list of messages is no worker's to refuse: it would say so in its parser's words.
fn refuse_messages(view: &BodyView<'_>, endpoint: Endpoint) -> Result<(), Failure> {
    const FIELD: &str = "messages";
    let is_list = |raw: &str| raw.starts_with('[');
    if endpoint != Endpoint::ChatCompletions || view.present(FIELD).is_some_and(is_list) {
        return Ok(());
    }
    let message = "'messages' must be a list of messages.";
    Err(Failure::bad_request("invalid_body", message).param(Some(FIELD.to_owned())))
}

/// A client's own chat template runs on the workers, so it needs the operator's leave.
fn refuse_template(view: &BodyView<'_>, live: &Live) -> Result<(), Failure> {
    const FIELD: &str = "chat_template";
    if live.edge.allow_request_chat_template || view.present(FIELD).is_none() {
        return Ok(());
    }
    Err(Failure::bad_request(
        "chat_template_not_allowed",
        "chat_template in requests is off here; leave it out, or set allow_request_chat_template.",
    )
    .param(Some(FIELD.to_owned())))
}

/// As upstream's validator, and before any prefill is spent: the context worker is never shown the
/// field, so only the generation worker would refuse it.
fn refuse_stream_options(view: &BodyView<'_>, stream: bool) -> Result<(), Failure> {
    const FIELD: &str = "stream_options";
    if stream || view.present(FIELD).is_none() {
        return Ok(());
    }
    Err(Failure::bad_request(
        "stream_options_without_stream",
        "stream_options is only for requests with stream: true; leave it out.",
    )
    .param(Some(FIELD.to_owned())))
}
