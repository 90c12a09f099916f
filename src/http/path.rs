//! Paths, in the one spelling that is compared with what is served.
//!
//! Two readings of a target: [`canonical`], which the edge routes by, repairs only what every HTTP
//! program reads alike and refuses the rest; [`means`], which takes a target for whatever some server
//! could make of it, tells what a refused spelling was meant for. docs/surface.md has the table.
//! What is routed must be what was looked at, so no part of a client's spelling goes any further.

use std::borrow::Cow;

/// Bytes of a path at most.
pub const LONGEST: usize = 8 * 1024;

/// Why a target has no canonical path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("it does not begin with a slash")]
    NoPath,
    #[error("it is longer than {LONGEST} bytes")]
    TooLong,
    #[error("it has an empty segment")]
    EmptySegment,
    #[error("it has a dot segment")]
    DotSegment,
    #[error("it has a backslash")]
    Backslash,
    #[error("it has a byte that is no printable ASCII character")]
    Unprintable,
    #[error("it has a percent sign without two hexadecimal digits")]
    BrokenEscape,
}

/// The canonical spelling of an absolute path without its query: escaped unreserved characters (RFC
/// 3986 section 2.3) as they are, the hexadecimal digits of other escapes in upper case, and no
/// single slash at the end.
///
/// # Errors
/// For a path that two programs could read differently, even after this.
pub fn canonical(path: &[u8]) -> Result<Cow<'_, str>, PathError> {
    if path.len() > LONGEST {
        return Err(PathError::TooLong);
    }
    if path.first() != Some(&b'/') {
        return Err(PathError::NoPath);
    }
    if path.iter().any(|byte| !byte.is_ascii_graphic()) {
        return Err(PathError::Unprintable);
    }
    let text = std::str::from_utf8(path).map_err(|_| PathError::Unprintable)?;
    let mut path = unescape_unreserved(text)?;
    if path.contains('\\') {
        return Err(PathError::Backslash);
    }
    let is_root = path.len() == 1;
    if !is_root && path.ends_with('/') {
        path = match path {
            Cow::Borrowed(text) => Cow::Borrowed(text.strip_suffix('/').unwrap_or(text)),
            Cow::Owned(mut text) => {
                text.pop();
                Cow::Owned(text)
            }
        };
    }
    for segment in path.split('/').skip(1) {
        match segment {
            "" if !is_root => return Err(PathError::EmptySegment),
            "." | ".." => return Err(PathError::DotSegment),
            _ => {}
        }
    }
    Ok(path)
}

fn unescape_unreserved(text: &str) -> Result<Cow<'_, str>, PathError> {
    let mut parts = text.split('%');
    let Some(first) = parts.next().filter(|first| first.len() < text.len()) else {
        return Ok(Cow::Borrowed(text));
    };
    let mut out = String::with_capacity(text.len());
    out.push_str(first);
    for part in parts {
        let byte = part.as_bytes().first_chunk().and_then(escaped);
        let byte = byte.ok_or(PathError::BrokenEscape)?;
        if byte.is_ascii_control() {
            return Err(PathError::Unprintable);
        }
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out.push_str(part.get(2..).unwrap_or_default());
    }
    Ok(Cow::Owned(out))
}

/// The byte that two hexadecimal digits stand for.
fn escaped(digits: &[u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? * 16 + low?).ok()
}

/// All of a canonical path's escapes decoded, once; `None` where that is not UTF-8.
pub fn decode(canonical: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(canonical.len());
    let mut parts = canonical.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let (digits, rest) = part.as_bytes().split_first_chunk()?;
        bytes.push(escaped(digits)?);
        bytes.extend_from_slice(rest);
    }
    String::from_utf8(bytes).ok()
}

/// The first of `paths` that some server could take a target for, and be it one that decodes escapes
/// again and again, merges slashes, follows dot segments and drops parameters. A target with a host
/// in it means what its path ends in.
pub fn means<'p>(target: &[u8], paths: impl IntoIterator<Item = &'p str>) -> Option<&'p str> {
    let decoded = decoded(target);
    let end = decoded.iter().position(|byte| b"?#".contains(byte));
    let path = decoded.get(..end.unwrap_or(decoded.len()))?;
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|byte| b"/\\".contains(byte)) {
        let name = segment.split(|byte| *byte == b';').next();
        match name.unwrap_or_default().trim_ascii() {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    let with_host = !path.starts_with(b"/") && !path.starts_with(b"\\");
    let same = |path: &&str| {
        let own = || path.split('/').skip(1).map(str::as_bytes);
        let from = if with_host {
            segments.len().saturating_sub(own().count())
        } else {
            0
        };
        segments.iter().skip(from).copied().eq(own())
    };
    paths.into_iter().find(same)
}

/// Without any percent escape, also where decoding makes a new one.
fn decoded(target: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(target.len());
    for byte in target {
        out.push(*byte);
        while let [.., b'%', high, low] = out[..]
            && let Some(byte) = escaped(&[high, low])
        {
            out.truncate(out.len() - 3);
            out.push(byte);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_everybody_reads_alike_is_put_into_one_spelling() {
        for (path, one) in [
            ("/", "/"),
            ("/v1/models", "/v1/models"),
            ("/v1/models/", "/v1/models"),
            ("/v1/%6D%6fdels", "/v1/models"),
            ("/v1/models/a%2fb%20c", "/v1/models/a%2Fb%20c"),
            ("/%7e%2D%5F", "/~-_"),
            ("/v1/Models;a=b", "/v1/Models;a=b"),
            // Decoding makes no escape that is decoded again.
            ("/a%25%32%35", "/a%2525"),
        ] {
            assert_eq!(canonical(path.as_bytes()).unwrap(), one, "{path}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let long = format!("/{}", "a".repeat(LONGEST));
        for (path, error) in [
            ("", PathError::NoPath),
            ("*", PathError::NoPath),
            ("v1", PathError::NoPath),
            ("//v1", PathError::EmptySegment),
            ("//", PathError::EmptySegment),
            ("/v1//", PathError::EmptySegment),
            ("/v1/./a", PathError::DotSegment),
            ("/v1/..", PathError::DotSegment),
            ("/v1/%2e%2E/a", PathError::DotSegment),
            ("/.%2e/a", PathError::DotSegment),
            ("/v1\\a", PathError::Backslash),
            ("/v1 a", PathError::Unprintable),
            ("/v1/\u{e9}", PathError::Unprintable),
            ("/v1/\0", PathError::Unprintable),
            ("/v1/%00", PathError::Unprintable),
            ("/v1/%0d%0a", PathError::Unprintable),
            ("/v1/%", PathError::BrokenEscape),
            ("/v1/%6", PathError::BrokenEscape),
            ("/v1/%6g", PathError::BrokenEscape),
            (&long, PathError::TooLong),
        ] {
            assert_eq!(canonical(path.as_bytes()), Err(error), "{path}");
        }
    }

    #[test]
    fn a_canonical_path_stays_as_it_is_and_means_itself() {
        for path in ["/v1/ch%61t/completions/", "/v1/chat/completions"] {
            let once = canonical(path.as_bytes()).unwrap();
            assert_eq!(canonical(once.as_bytes()).unwrap(), once);
            assert_eq!(
                means(path.as_bytes(), ["/v1/chat/completions"]),
                Some(&*once)
            );
        }
    }

    #[test]
    fn escapes_are_decoded_once() {
        for (path, text) in [
            ("a%2Fb%20c", Some("a/b c")),
            ("%2541", Some("%41")),
            ("%C3%A9", Some("\u{e9}")),
            ("%C3", None),
            ("", Some("")),
        ] {
            assert_eq!(decode(path).as_deref(), text, "{path}");
        }
    }
}
