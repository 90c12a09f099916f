//! `tls`, as it was understood.

use serde_json::{Map, Value, json};

use super::put;
use crate::config::{TlsConfig, WorkerTlsConfig};

/// Puts the section into `section`, unless it says nothing.
pub(super) fn tls(
    section: &mut Map<String, Value>,
    port: Option<&TlsConfig>,
    workers: Option<&WorkerTlsConfig>,
) {
    let mut tls = Map::new();
    if let Some(port) = port {
        put(&mut tls, "cert_file", json!(port.cert_file));
        put(&mut tls, "key_file", json!(port.key_file));
        if let Some(clients) = &port.clients {
            let auth = if clients.required {
                "required"
            } else {
                "optional"
            };
            put(&mut tls, "client_ca_file", json!(clients.ca_file));
            put(&mut tls, "client_auth", auth);
        }
    }
    if let Some(workers) = workers {
        put(&mut tls, "workers", self::workers(workers));
    }
    if !tls.is_empty() {
        put(section, "tls", tls);
    }
}

fn workers(config: &WorkerTlsConfig) -> Value {
    let mut workers = Map::new();
    put(&mut workers, "ca_file", json!(config.ca_file));
    if let Some((cert_file, key_file)) = &config.shown {
        put(&mut workers, "cert_file", json!(cert_file));
        put(&mut workers, "key_file", json!(key_file));
    }
    if let Some(name) = &config.server_name {
        put(&mut workers, "server_name", name.as_str());
    }
    if !config.plain.is_empty() {
        let mut plain: Vec<&String> = config.plain.iter().collect();
        plain.sort_unstable();
        put(&mut workers, "plain", json!(plain));
    }
    Value::Object(workers)
}
