//! How clients say who they are, printed. Digests in the keys file stay there: it may change at any time.

use serde_json::{Map, Value, json};

use super::put as put_key;
use crate::{
    config::{GatewayConfig, JwksSource, JwtConfig},
    wire::jwks::ALGORITHMS,
};

/// Adds `keys_file`, `jwt` and `failed_attempts`.
pub(super) fn put(gateway: &mut Map<String, Value>, config: &GatewayConfig) {
    if let Some(file) = &config.keys_file {
        put_key(gateway, "keys_file", file.path.display().to_string());
    }
    if let Some(jwt) = &config.jwt {
        put_key(gateway, "jwt", self::jwt(jwt));
    }
    let attempts = match &config.failed_attempts {
        None => json!("off"),
        Some(attempts) => json!({
            "max": attempts.max,
            "per": humantime::format_duration(attempts.per).to_string(),
        }),
    };
    put_key(gateway, "failed_attempts", attempts);
}

fn jwt(config: &JwtConfig) -> Value {
    let mut jwt = Map::new();
    put_key(&mut jwt, "issuer", config.issuers.clone());
    put_key(&mut jwt, "audience", config.audiences.clone());
    let names = ALGORITHMS.iter();
    let names = names.filter(|(_, algorithm)| config.algorithms.contains(algorithm));
    let names: Vec<&str> = names.map(|(name, _)| *name).collect();
    put_key(&mut jwt, "algorithms", names);
    let duration = |duration| humantime::format_duration(duration).to_string();
    put_key(&mut jwt, "leeway", duration(config.leeway));
    put_key(&mut jwt, "client_claim", config.client_claim.clone());
    match &config.keys {
        JwksSource::File { path, .. } => {
            put_key(&mut jwt, "jwks_file", path.display().to_string());
        }
        JwksSource::Url(url) => {
            put_key(&mut jwt, "jwks_url", url.text());
            put_key(&mut jwt, "refresh", duration(url.refresh));
            put_key(&mut jwt, "min_refresh", duration(url.min_refresh));
        }
    }
    Value::Object(jwt)
}
