//! Workers over real sockets.

mod faults;
mod legs;
mod routes;
mod streams;

use std::net::SocketAddr;

use pingora::{
    apps::ServerApp,
    protocols::{Stream, l4::stream::Stream as L4Stream},
};
use serde_json::{Map, Value, json};
use tokio::{net::TcpListener, sync::watch};

use super::*;

/// A worker that listens on a free port until the test's runtime ends.
struct Running {
    worker: Arc<SimulatedWorker>,
    address: SocketAddr,
    client: reqwest::Client,
    _shutdown: watch::Sender<bool>,
}

async fn start(config: SimulatedWorkerConfig) -> Running {
    let worker = Arc::new(SimulatedWorker::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (keeper, shutdown) = watch::channel(false);
    let app = Arc::clone(&worker);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let (app, shutdown) = (Arc::clone(&app), shutdown.clone());
            let stream: Stream = Box::new(L4Stream::from(connection));
            tokio::spawn(async move { app.process_new(stream, &shutdown).await });
        }
    });
    Running {
        worker,
        address,
        client: reqwest::Client::new(),
        _shutdown: keeper,
    }
}

fn config(role: Role) -> SimulatedWorkerConfig {
    let mut config = SimulatedWorkerConfig::new("under-test", role);
    config.engine.ranks = 2;
    config.transfer_timeout = Duration::from_millis(100);
    config
}

async fn aggregated() -> Running {
    start(config(Role::Aggregated)).await
}

/// A context and a generation worker that hand caches over.
async fn pair() -> (Running, Running) {
    let exchange = Exchange::new();
    let with = |role| {
        let mut config = config(role);
        config.exchange = Some(Arc::clone(&exchange));
        start(config)
    };
    tokio::join!(with(Role::Context), with(Role::Generation))
}

impl Running {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.client.get(self.url(path))).await
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        answer(self.client.post(self.url(path)).json(body)).await
    }

    /// A chat that is answered.
    async fn chat(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/v1/chat/completions", body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The data of each event of a stream.
    async fn events(&self, path: &str, body: &Value) -> Vec<String> {
        let request = self.client.post(self.url(path)).json(body);
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        let kind = answer.headers()["content-type"].clone();
        assert_eq!(kind, "text/event-stream; charset=utf-8");
        let text = answer.text().await.expect("a whole stream");
        text.split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").expect("data").to_owned())
            .collect()
    }

    fn last(&self) -> recorder::Recorded {
        let mut recorded = self.worker.config.recorder.since(0);
        recorded.pop().expect("a request came")
    }
}

async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    let body = answer.bytes().await.expect("a body");
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

/// Waits up to a second until something is so.
async fn soon(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..100 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within a second: {what}");
}

fn question(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}]})
}

/// `body` with further fields.
fn with(mut body: Value, changes: Value) -> Value {
    let fields = body.as_object_mut().expect("an object");
    for (name, value) in changes.as_object().expect("an object") {
        fields.insert(name.clone(), value.clone());
    }
    body
}
