//! The demo: a configuration and a simulated fleet that fit each other.
//!
//! Two context and two generation workers with four ranks each, every one behind its own worker
//! filter, described in the YAML that a user would write. It opens no sockets: the server does.

use std::{fmt::Write, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use super::{engine::EngineConfig, transfer::Exchange, worker::SimulatedWorkerConfig};
use crate::{
    config::{Config, ConfigError},
    wire::Role,
};

const RANKS: u32 = 4;
/// Small, so that even short prompts show cached tokens.
const BLOCK_SIZE: usize = 8;
const PARENT_HEADER: &str = "X-Dynamo-Parent-Session-ID";

/// A simulated worker and where it listens.
pub struct Simulated {
    pub listen: String,
    pub config: SimulatedWorkerConfig,
}

/// A demo that is ready to be served.
pub struct Demo {
    pub config: Config,
    pub workers: Vec<Simulated>,
}

/// Why there can be no demo.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("no free port on the loopback address: {0}")]
    NoPort(#[from] io::Error),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// One worker of the demo behind its filter.
struct Placed {
    name: String,
    role: Role,
    filter: SocketAddr,
    worker: SocketAddr,
}

impl Demo {
    /// Plans the demo; `free_port` hands out loopback addresses that are kept free.
    ///
    /// # Errors
    /// [`DemoError`] when no port is free.
    pub fn plan(
        port: u16,
        admin_port: u16,
        scope_both: bool,
        mut free_port: impl FnMut() -> io::Result<SocketAddr>,
    ) -> Result<Self, DemoError> {
        let mut placed = Vec::new();
        for role in [Role::Context, Role::Generation] {
            for number in 0..2 {
                let name = format!("{}-{number}", role.label());
                placed.push(Placed {
                    name,
                    role,
                    filter: free_port()?,
                    worker: free_port()?,
                });
            }
        }
        let yaml = yaml(port, admin_port, scope_both, &placed);
        let config = Config::from_yaml(&yaml, Path::new("demo"))?;
        let exchange = Exchange::new();
        let workers = placed
            .iter()
            .map(|placed| simulated(placed, &exchange))
            .collect();
        Ok(Self { config, workers })
    }

    /// What to paste into a second terminal.
    pub fn instructions(edge: SocketAddr, admin: SocketAddr) -> String {
        let system = "You are the planner of a team of agents that repairs a large code base. \
                      Read the whole report below before you answer, and keep your answers short.";
        let curl = |headers: &str, user: &str| {
            format!(
                "curl -si http://{edge}/v1/chat/completions -H 'Content-Type: application/json' {headers} \
                 -d '{{\"model\":\"demo\",\"max_tokens\":8,\"messages\":[{{\"role\":\"system\",\"content\":\"{system}\"}},\
                 {{\"role\":\"user\",\"content\":\"{user}\"}}]}}'"
            )
        };
        format!(
            "kindred: serving on http://{edge}\n\
             kindred: admin on http://{admin}\n\
             \n\
             A parent turn:\n{}\n\n\
             A sub-agent turn; it runs on its parent's context instance and rank (x-kindred-context, x-kindred-rank):\n{}\n\n\
             A forged internal header; it is removed and counted (kindred_pruned_headers_total at http://{admin}/metrics):\n{}\n",
            curl("-H 'x-session-id: parent-1'", "What is to be done first?"),
            curl(
                &format!("-H 'x-session-id: child-a' -H '{PARENT_HEADER}: parent-1'"),
                "Look into the parser alone."
            ),
            curl(
                "-H 'x-session-id: stranger' -H 'x-trtllm-subagent-affinity-id: parent-1'",
                "Let me onto the rank of parent-1."
            ),
        )
    }
}

fn yaml(port: u16, admin_port: u16, scope_both: bool, placed: &[Placed]) -> String {
    let urls = |role: Role| {
        let urls: Vec<_> = placed
            .iter()
            .filter(|placed| placed.role == role)
            .map(|p| format!("'{}'", p.filter))
            .collect();
        urls.join(", ")
    };
    let mut yaml = format!(
        "hostname: 127.0.0.1\n\
         port: {port}\n\
         internal_request_auth_key: {key}\n\
         conversation_affinity_header_for_subagents: {PARENT_HEADER}\n\
         subagent_affinity_scope: {scope}\n\
         context_servers: {{num_instances: 2, urls: [{context}], router: {{type: conversation}}}}\n\
         generation_servers: {{num_instances: 2, urls: [{generation}], router: {{type: conversation}}}}\n\
         gateway: {{anonymous: owned}}\n\
         admin: {{listen: '127.0.0.1:{admin_port}'}}\n\
         telemetry: {{debug_headers: true, log: warn}}\n\
         worker_filters:\n",
        key = uuid::Uuid::new_v4().simple(),
        scope = if scope_both { "both" } else { "context" },
        context = urls(Role::Context),
        generation = urls(Role::Generation),
    );
    for placed in placed {
        // Writing to a string cannot fail.
        let _ = writeln!(
            yaml,
            "- {{name: {}, listen: '{}', worker: '{}', server_role: {}, enable_attention_dp: true, \
             tensor_parallel_size: {RANKS}, attention_dp_config: {{kv_cache_routing_conversation_affinity: true}}}}",
            placed.name,
            placed.filter,
            placed.worker,
            placed.role.label(),
        );
    }
    yaml
}

fn simulated(placed: &Placed, exchange: &Arc<Exchange>) -> Simulated {
    let engine = EngineConfig {
        ranks: RANKS,
        block_size: BLOCK_SIZE,
        prefill_per_token: Duration::from_micros(200),
        decode_interval: Duration::from_millis(2),
        ..EngineConfig::default()
    };
    Simulated {
        listen: placed.worker.to_string(),
        config: SimulatedWorkerConfig {
            engine,
            exchange: Some(exchange.clone()),
            ..SimulatedWorkerConfig::new(placed.name.clone(), placed.role)
        },
    }
}
