//! The hostile requests as they stand in the files, and how they are sent.

use std::{collections::BTreeMap, io::Write, net::SocketAddr};

use serde::Deserialize;

use crate::support::{
    h2c,
    raw::{self, Answer},
};

/// One line of `requests.jsonl`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    pub name: String,
    #[serde(default = "chat_path")]
    pub path: String,
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    #[serde(default)]
    pub trailers: Vec<(String, String)>,
    /// Members that are added in the middle of an ordinary body.
    pub add: Option<String>,
    /// The whole body instead.
    pub body: Option<String>,
    /// The parent that is trusted where there is no `gateway` section.
    pub parent: Option<String>,
    /// Cannot be written in HTTP/2.
    #[serde(default)]
    pub http1: bool,
    /// Internal names stand in `Connection:`, which HTTP/2 does not have.
    #[serde(default)]
    pub nominated: bool,
    /// Refused as a whole, so nothing needs to be counted.
    #[serde(default)]
    pub uncounted: bool,
    #[serde(default = "good")]
    pub status: Vec<u16>,
    #[serde(default)]
    pub pruned_headers: BTreeMap<String, u64>,
    #[serde(default)]
    pub pruned_fields: BTreeMap<String, u64>,
}

pub fn chat_path() -> String {
    "/v1/chat/completions".to_owned()
}

fn good() -> Vec<u16> {
    vec![200]
}

/// The objects of a file with one on each line.
pub fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Vec<T> {
    let read = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(read).collect()
}

impl Line {
    pub fn all() -> Vec<Self> {
        let lines = parse(include_str!("requests.jsonl"));
        assert!(lines.len() >= 150);
        lines
    }

    fn body(&self) -> String {
        let prompt = match self.path.as_str() {
            "/v1/completions" => r#""prompt":"hello""#,
            _ => r#""messages":[{"role":"user","content":"hello"}]"#,
        };
        let add = self.add.iter().map(|add| format!("{add},"));
        self.body.clone().unwrap_or_else(|| {
            let add: String = add.collect();
            format!(r#"{{"model":"m",{add}{prompt},"max_tokens":4}}"#)
        })
    }

    /// As a client with that key sends it.
    pub fn request(&self, key: &str) -> Request {
        let mut headers = vec![("authorization".to_owned(), format!("Bearer {key}"))];
        headers.extend(self.headers.iter().cloned());
        Request {
            path: self.path.clone(),
            headers,
            trailers: self.trailers.clone(),
            body: self.body(),
        }
    }
}

/// A request whose header fields are written as they stand: each character is one byte.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub trailers: Vec<(String, String)>,
    pub body: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    H2c,
}

impl Request {
    /// The answer has the status 0 where there is none.
    pub fn send(&self, protocol: Protocol, to: SocketAddr) -> Answer {
        match protocol {
            Protocol::Http1 => self.send_http1(to),
            Protocol::H2c => self.send_h2c(to),
        }
    }

    fn send_http1(&self, to: SocketAddr) -> Answer {
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n",
            self.path
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut bytes: Vec<u8> = head.chars().map(|c| c as u32 as u8).collect();
        let body = &self.body;
        let rest = if self.trailers.is_empty() {
            format!("content-length: {}\r\n\r\n{body}", body.len())
        } else {
            let trailers = self.trailers.iter();
            let trailers: String = trailers.map(|(n, v)| format!("{n}: {v}\r\n")).collect();
            format!(
                "transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n{trailers}\r\n",
                body.len()
            )
        };
        bytes.extend_from_slice(rest.as_bytes());
        let mut stream = raw::connect(to);
        // The server may refuse and close before it has read everything.
        let _ = stream.write_all(&bytes);
        raw::try_read_answer(&mut stream).unwrap_or_else(|cut| Answer {
            status: 0,
            headers: Vec::new(),
            body: cut,
        })
    }

    fn send_h2c(&self, to: SocketAddr) -> Answer {
        let lower = |pairs: &[(String, String)]| -> Vec<(String, String)> {
            let pairs = pairs.iter();
            pairs.map(|(n, v)| (n.to_lowercase(), v.clone())).collect()
        };
        let (headers, trailers) = (lower(&self.headers), lower(&self.trailers));
        h2c::post(
            to,
            &self.path,
            &borrowed(&headers),
            self.body.as_bytes(),
            &borrowed(&trailers),
        )
    }
}

fn borrowed(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    let pairs = pairs.iter();
    pairs.map(|(n, v)| (n.as_str(), v.as_str())).collect()
}
