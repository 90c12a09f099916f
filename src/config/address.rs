//! Addresses: what upstream takes for a worker's url, and where this process listens.
//!
//! Judges spelling only. It resolves no name and opens no socket.

/// Why a text is not the address of a worker. `what` says it without repeating the text, which
/// could carry a password.
pub(crate) fn worker(text: &str) -> Result<(), &'static str> {
    if text.contains("://") {
        return Err("has a scheme; write only host:port");
    }
    if text.contains('@') {
        return Err("has a user or a password; write only host:port");
    }
    if text.contains(['/', '?', '#']) {
        return Err("has a path; write only host:port");
    }
    if text.contains('[') || text.matches(':').count() > 1 {
        return Err(
            "is no host:port; an IPv6 literal cannot be written here (as in upstream), use a host \
             name that resolves to it",
        );
    }
    let Some((host, port)) = text.split_once(':') else {
        return Err("has no port; write host:port");
    };
    if !is_host(host) {
        return Err("has no host name or IPv4 address before the colon; write host:port");
    }
    match self::port(port) {
        Some(1..) => Ok(()),
        _ => Err("has no port between 1 and 65535 after the colon; write host:port"),
    }
}

/// Plain decimal digits, no sign and no leading zero.
fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let octal = text.len() > 1 && text.starts_with('0');
    if plain && !octal {
        text.parse().ok()
    } else {
        None
    }
}

fn is_host(text: &str) -> bool {
    let fits = (1..=253).contains(&text.len());
    fits && text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

/// Whether a server can bind to `text`: a host name, an IPv4 or an IPv6 address.
pub(crate) fn is_bind_host(text: &str) -> bool {
    is_host(text) || text.parse::<std::net::Ipv6Addr>().is_ok()
}

/// Where something listens.
pub(crate) struct Listener {
    host: String,
    port: u16,
}

impl Listener {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        let host = match host.to_lowercase().as_str() {
            "localhost" | "::1" => "127.0.0.1".to_owned(),
            "::" => "0.0.0.0".to_owned(),
            host => host.to_owned(),
        };
        Self { host, port }
    }

    /// From `host:port` or `[v6]:port`; port 0 picks a free one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(host) => host.parse::<std::net::Ipv6Addr>().ok().map(|_| host)?,
            None => Some(host).filter(|host| is_host(host))?,
        };
        Some(Self::new(host, self::port(port)?))
    }

    /// Whether both cannot be bound at once.
    pub(crate) fn clashes(&self, other: &Self) -> bool {
        let any = |listener: &Self| listener.host == "0.0.0.0";
        self.port != 0
            && self.port == other.port
            && (self.host == other.host || any(self) || any(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_exactly_host_and_port() {
        for good in ["h:1", "10.0.0.1:8000", "ctx-0.svc_a.local:65535"] {
            assert_eq!(worker(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            ":",
            "h",
            "h:",
            ":1",
            "h:0",
            "h:65536",
            "h:08",
            "h:+8",
            "h:8 ",
            " h:8",
            "h:8/",
            "http://h:8",
            "[::1]:8",
            "::1",
            "u:p@h:8",
            "h:8:9",
            "hé:8",
            "h:8?x",
            "h\n:8",
        ] {
            assert!(worker(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn listeners_clash_on_the_same_port_of_the_same_or_any_host() {
        let parse = |text| Listener::parse(text).expect(text);
        assert!(parse("127.0.0.1:1").clashes(&parse("localhost:1")));
        assert!(parse("0.0.0.0:1").clashes(&parse("10.0.0.1:1")));
        assert!(parse("[::]:1").clashes(&parse("10.0.0.1:1")));
        assert!(!parse("10.0.0.2:1").clashes(&parse("10.0.0.1:1")));
        assert!(!parse("127.0.0.1:0").clashes(&parse("127.0.0.1:0")));
        for bad in ["", "h", "h:x", "[h]:1", "::1:1", ":1", "h:-1"] {
            assert!(Listener::parse(bad).is_none(), "{bad}");
        }
    }
}
