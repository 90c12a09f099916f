//! The expected values of `signing.json`: signatures, verdicts, ids and how bodies are read.
//!
//! Every section must be there with at least one entry. Two differences from upstream are right and
//! pass: a refusal of two copies of an internal header, where upstream takes one of them, and of half
//! a surrogate pair in a client's body (specification sections 5.7 and 5.8).

use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{
    EntryResult,
    entry::{Entry, FieldError, Refused, Signed},
};
use crate::wire::{
    body::{BodyError, BodyView},
    conversation, headers,
    object::Object,
    scan,
    signature::SigningProfile,
    worker_body::WorkerBody,
};

type Compare = fn(&Entry) -> Result<(), Difference>;

const SECTIONS: [(&str, Compare); 6] = [
    ("affinity", affinity),
    ("disagg_auth", disagg_auth),
    ("validate_affinity", validate_affinity),
    ("validate_disagg_auth", validate_disagg_auth),
    ("conversation_id", conversation_id),
    ("wire_body", wire_body),
];

/// What is different about an entry.
struct Difference(String);

impl From<FieldError> for Difference {
    fn from(error: FieldError) -> Self {
        Self(error.to_string())
    }
}

/// Whether a file has a section of this kind.
pub(super) fn recognises(file: &Object) -> bool {
    SECTIONS
        .iter()
        .any(|(section, _)| file.get(section).is_some())
}

/// Runs every entry; an error says what of the file's shape is not as it must be.
pub(super) fn run(file: &Object) -> Result<Vec<EntryResult>, String> {
    let known = |name: &str| name == "meta" || SECTIONS.iter().any(|(own, _)| *own == name);
    if let Some((name, _)) = file.members().iter().find(|(name, _)| !known(name)) {
        return Err(format!("has an unknown section '{name}'"));
    }
    let mut results = Vec::new();
    for (section, compare) in SECTIONS {
        let raw = file
            .get(section)
            .ok_or_else(|| format!("lacks the section '{section}'"))?;
        let entries: Vec<&RawValue> = serde_json::from_str(raw.get())
            .map_err(|_| format!("has a section '{section}' that is not a list"))?;
        if entries.is_empty() {
            return Err(format!("has no entries in the section '{section}'"));
        }
        for (position, raw) in entries.iter().enumerate() {
            results.push(compare_entry(section, position, raw.get(), compare));
        }
    }
    Ok(results)
}

fn compare_entry(section: &str, position: usize, raw: &str, compare: Compare) -> EntryResult {
    let entry = match Entry::parse(raw) {
        Ok(entry) => entry,
        Err(error) => {
            return EntryResult::failed(format!("{section}/#{position}"), error.to_string());
        }
    };
    let name = format!("{section}/{}", entry.name());
    EntryResult {
        name,
        difference: compare(&entry).err().map(|difference| difference.0),
    }
}

fn affinity(entry: &Entry) -> Result<(), Difference> {
    let signed = entry.sign_affinity()?;
    same_headers(entry, &signed)?;
    same_payload(entry, &signed)?;
    if let (Some(payload), true) = (&signed.canonical, entry.has("canonical_sha256")) {
        let digest = Sha256::digest(payload.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        same(entry, "canonical_sha256", &hex.into())?;
    }
    let refused = entry.raw("error")? != "null";
    if refused != signed.headers.is_err() {
        return Err(differs(
            "error",
            entry.raw("error")?,
            &format!("{:?}", signed.headers),
        ));
    }
    if entry.has("affinity_header") {
        let sent = header(&signed, headers::AFFINITY_ID);
        same(entry, "affinity_header", &sent)?;
    }
    if entry.has("signed_conversation_id") && !refused {
        let facts = entry.facts()?.ok();
        let id = facts.and_then(|facts| facts.conversation_id);
        same(
            entry,
            "signed_conversation_id",
            &id.map(|id| id.to_lossy().into_owned()).into(),
        )?;
    }
    if entry.has("expected") {
        same(entry, "expected", &header(&signed, headers::AFFINITY_AUTH))?;
    }
    Ok(())
}

fn disagg_auth(entry: &Entry) -> Result<(), Difference> {
    let signed = entry.sign_transfer()?;
    same_headers(entry, &signed)?;
    same_payload(entry, &signed)?;
    let requires = entry
        .transfer()?
        .is_ok_and(|transfer| transfer.requires_auth());
    same(entry, "requires_auth", &requires.into())?;
    if entry.has("expected") {
        same(entry, "expected", &header(&signed, headers::DISAGG_AUTH))?;
    }
    Ok(())
}

fn validate_affinity(entry: &Entry) -> Result<(), Difference> {
    same_verdict(entry, entry.verify_affinity()?.map(Some))
}

fn validate_disagg_auth(entry: &Entry) -> Result<(), Difference> {
    same_verdict(entry, entry.verify_transfer()?.map(|()| None))
}

fn conversation_id(entry: &Entry) -> Result<(), Difference> {
    let params = entry.raw("conversation_params")?;
    let body = match entry.boolean("body_has_conversation_params")? {
        true => format!(r#"{{"{}":{params}}}"#, conversation::PARAMS),
        false => "{}".to_owned(),
    };
    let headers = entry.headers()?;
    let read = || -> Result<_, BodyError> {
        let view = BodyView::parse(body.as_bytes())?;
        let id = conversation::resolve(&headers, &view)?;
        let forwarded = conversation::forwarded_params(&view, id.as_deref());
        Ok((id, forwarded.map(|params| params.into_owned())))
    };
    let read = read();
    if read.is_err() && scan::lone_surrogate(&body).is_some() {
        return Ok(());
    }
    let Some((id, forwarded)) = same_reading(entry, read)? else {
        return Ok(());
    };
    same(entry, "resolved", &id.into())?;
    let forwarded = forwarded.map_or(Ok(Value::Null), |raw| serde_json::from_str(&raw));
    let forwarded = forwarded.map_err(|error| Difference(error.to_string()))?;
    same(entry, "forwarded_conversation_params", &forwarded)
}

fn wire_body(entry: &Entry) -> Result<(), Difference> {
    let body = entry.text("body")?.unwrap_or_default();
    let read = WorkerBody::parse(body.as_bytes()).and_then(|read| {
        read.check_declared()?;
        Ok(read)
    });
    let Some(read) = same_reading(entry, read)? else {
        return Ok(());
    };
    let Some(role) = entry.role()? else {
        return Err(Difference("field 'role' must be a role".to_owned()));
    };
    let id = entry.text("subagent_affinity_id")?.unwrap_or_default();
    let payload = read
        .facts
        .payload(SigningProfile::Trtllm, role, headers::strip(&id));
    same(entry, "canonical", &payload.into())
}

fn same_headers(entry: &Entry, signed: &Signed) -> Result<(), Difference> {
    let headers = match &signed.headers {
        Ok(headers) => headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())))
            .collect(),
        Err(_) => Value::Null,
    };
    same(entry, "headers", &headers)
}

fn same_payload(entry: &Entry, signed: &Signed) -> Result<(), Difference> {
    if !entry.has("canonical") {
        return Ok(());
    }
    same(entry, "canonical", &signed.canonical.clone().into())
}

fn header(signed: &Signed, name: &str) -> Value {
    let headers = signed.headers.as_deref().unwrap_or_default();
    let found = headers.iter().find(|(own, _)| *own == name);
    found.map(|(_, value)| value.as_str()).into()
}

/// Compares a worker's verdict. The affinity id is `None` where the section has none.
fn same_verdict(
    entry: &Entry,
    verdict: Result<Option<Option<String>>, Refused>,
) -> Result<(), Difference> {
    match verdict {
        Err(refused) if refused.repeated => Ok(()),
        Err(refused) => {
            same(entry, "verdict", &"error".into())?;
            same(entry, "http_status", &400.into())?;
            same(entry, "message", &refused.message.into())
        }
        Ok(id) => {
            same(entry, "verdict", &"ok".into())?;
            id.map_or(Ok(()), |id| same(entry, "affinity_id", &id.into()))
        }
    }
}

/// Compares whether a body is read at all; the reading where both sides read it.
fn same_reading<T>(entry: &Entry, read: Result<T, BodyError>) -> Result<Option<T>, Difference> {
    let verdict = entry.text("verdict")?.unwrap_or_default();
    match read {
        Ok(read) if verdict == "ok" => Ok(Some(read)),
        Ok(_) => Err(differs("verdict", &verdict, "ok")),
        Err(error) if verdict == "ok" => Err(differs("verdict", &verdict, &error.message)),
        Err(_) => same(entry, "http_status", &400.into()).map(|()| None),
    }
}

fn same(entry: &Entry, field: &str, got: &Value) -> Result<(), Difference> {
    let raw = entry.raw(field)?;
    let expected: Value = serde_json::from_str(raw)
        .map_err(|error| Difference(format!("field '{field}': {error}")))?;
    if expected == *got {
        Ok(())
    } else {
        Err(differs(field, raw, &got.to_string()))
    }
}

fn differs(field: &str, expected: &str, got: &str) -> Difference {
    const SHOWN: usize = 400;
    let short = |text: &str| text.chars().take(SHOWN).collect::<String>();
    Difference(format!(
        "{field}: expected {}, got {}",
        short(expected),
        short(got)
    ))
}
