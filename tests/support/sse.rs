//! Server-sent events as a client reads them, by the letter of the standard.

/// What a client is told of a stream: the data of each event, and the comments.
#[derive(Debug, Default, PartialEq)]
pub struct Read {
    pub events: Vec<String>,
    pub comments: usize,
    /// Whether something came after the last event's end.
    pub unfinished: bool,
}

/// Reads a whole stream.
pub fn read(bytes: &[u8]) -> Read {
    let text = String::from_utf8_lossy(bytes);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut read = Read::default();
    let mut data: Option<String> = None;
    let (lines, rest) = text.rsplit_once('\n').unwrap_or(("", &text));
    for line in lines.split('\n') {
        if line.is_empty() {
            read.events.extend(data.take());
        } else if line.starts_with(':') {
            read.comments += 1;
        } else if let Some(value) = line.strip_prefix("data:") {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut data {
                Some(data) => *data = format!("{data}\n{value}"),
                None => data = Some(value.to_owned()),
            }
        }
    }
    read.unfinished = data.is_some() || !rest.is_empty();
    read
}

/// The error object that a stream ends with.
pub fn last_error(bytes: &[u8]) -> serde_json::Value {
    let read = read(bytes);
    assert!(!read.unfinished, "{read:?}");
    let last = read.events.last().expect("an event");
    let event: serde_json::Value = serde_json::from_str(last).expect("JSON");
    let error = event["error"].as_object().expect("an error object");
    let mut fields: Vec<_> = error.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["code", "message", "param", "type"]);
    assert!(!last.contains("127.0.0.1"), "{last}");
    event["error"].clone()
}
