//! Who may ask, and with which headers every answer leaves.

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Response, StatusCode, Uri};
use serde_json::Value;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use subtle::ConstantTimeEq as _;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;
pub(crate) type Answer = Response<Body>;

/// The browser runs and shows nothing but what this process served, in no frame, and makes no HTML of text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const HEADERS: [(&str, &str); 7] = [
    ("content-security-policy", POLICY),
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// The header in which the page sends the token.
pub(crate) const TOKEN: &str = "fairlock-token";

/// Who may come in.
pub(crate) struct Door {
    /// Further names under which browsers may know this host.
    pub(crate) hosts: Vec<String>,
    /// `None`: nobody may evict.
    pub(crate) token: Option<Token>,
}

pub(crate) struct Token(String);

impl Token {
    pub(crate) const SHORTEST: usize = 16;

    pub(crate) fn new(token: String) -> Self {
        Self(token)
    }

    pub(crate) fn random() -> Self {
        Self(uuid::Uuid::new_v4().simple().to_string())
    }

    pub(crate) fn shown(&self) -> &str {
        &self.0
    }

    /// How long this takes does not tell how much of the token is right.
    fn is(&self, said: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(said).into()
    }
}

impl Door {
    /// A page of another host whose name suddenly leads here (DNS rebinding) must not read the answers.
    pub(crate) fn must_know(&self, uri: &Uri, headers: &HeaderMap, local: SocketAddr) -> Result<(), Box<Answer>> {
        let mut named = headers.get_all(hyper::header::HOST).iter();
        let host = match (named.next(), named.next(), uri.authority()) {
            (Some(host), None, None) => host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()),
            _ => None,
        };
        match host {
            Some(host) if self.knows(host.host(), local.ip()) => Ok(()),
            _ => {
                let text = "this page answers to localhost and to the address that it listens on; \
                            to allow another name, start fairlock serve with --host NAME\n";
                Err(Box::new(text_of(StatusCode::MISDIRECTED_REQUEST, text)))
            }
        }
    }

    fn knows(&self, host: &str, local: IpAddr) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = host.parse::<IpAddr>() {
            return address.is_loopback()
                || address == local.to_canonical()
                || self.hosts.iter().any(|known| known == host);
        }
        let mut names = self.hosts.iter().map(String::as_str).chain(["localhost"]);
        names.any(|name| name.eq_ignore_ascii_case(host))
    }

    /// Whether who asks may evict.
    pub(crate) fn must_have_token(&self, headers: &HeaderMap) -> Result<(), Box<Answer>> {
        let Some(token) = &self.token else {
            let text = "this page only shows; to evict by it, start fairlock serve with --evict\n";
            return Err(Box::new(text_of(StatusCode::FORBIDDEN, text)));
        };
        match headers.get(TOKEN) {
            Some(said) if token.is(said.as_bytes()) => Ok(()),
            _ => {
                let text = "the header Fairlock-Token has to be the token that fairlock serve printed at its start, or \
                            that FAIRLOCK_SERVE_TOKEN named\n";
                Err(Box::new(text_of(StatusCode::FORBIDDEN, text)))
            }
        }
    }
}

fn with_headers(status: StatusCode, kind: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = HEADERS.into_iter().chain([("content-type", kind)]);
    for (name, value) in headers {
        answer
            .headers_mut()
            .insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    answer
}

pub(crate) fn whole(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    with_headers(status, kind, Full::new(body.into()).boxed_unsync())
}

pub(crate) fn text_of(status: StatusCode, text: &'static str) -> Answer {
    whole(status, "text/plain; charset=utf-8", text)
}

pub(crate) fn document(status: StatusCode, document: &Value) -> Answer {
    whole(status, "application/json", document.to_string())
}

pub(crate) fn stream<S>(events: S) -> Answer
where
    S: futures::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static,
{
    with_headers(
        StatusCode::OK,
        "text/event-stream",
        StreamBody::new(events).boxed_unsync(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knows(hosts: &[&str], host: &str, local: &str) -> bool {
        let door = Door {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            token: None,
        };
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_str(host).unwrap());
        let local = SocketAddr::new(local.parse().unwrap(), 7379);
        door.must_know(&Uri::from_static("/"), &headers, local).is_ok()
    }

    #[test]
    fn only_this_hosts_own_names_and_those_of_the_command_line_are_known() {
        for host in [
            "localhost",
            "LocalHost:9000",
            "127.0.0.1",
            "127.0.0.1:7379",
            "[::1]:7379",
            "127.8.9.1",
        ] {
            assert!(knows(&[], host, "127.0.0.1"), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.5",
            "0.0.0.0",
            "",
            "localhost@evil",
            "a b",
            "[::2]",
        ] {
            assert!(!knows(&[], host, "127.0.0.1"), "{host}");
        }
        // The address of the connection, whatever was listened on.
        assert!(knows(&[], "10.0.0.5:80", "10.0.0.5"));
        assert!(knows(&[], "10.0.0.5:80", "::ffff:10.0.0.5"));
        assert!(!knows(&[], "10.0.0.6:80", "10.0.0.5"));
        assert!(knows(&["locks.example", "10.0.0.6"], "Locks.Example:80", "10.0.0.5"));
        assert!(knows(&["locks.example", "10.0.0.6"], "10.0.0.6", "10.0.0.5"));
    }

    #[test]
    fn a_request_with_two_hosts_or_none_is_refused() {
        let door = Door {
            hosts: Vec::new(),
            token: None,
        };
        let local = SocketAddr::from(([127, 0, 0, 1], 7379));
        let mut headers = HeaderMap::new();
        let root = Uri::from_static("/");
        assert!(door.must_know(&root, &headers, local).is_err());
        headers.append("host", HeaderValue::from_static("localhost"));
        assert!(door.must_know(&root, &headers, local).is_ok());
        assert!(
            door.must_know(&Uri::from_static("http://evil.example/"), &headers, local)
                .is_err()
        );
        headers.append("host", HeaderValue::from_static("localhost"));
        assert!(door.must_know(&root, &headers, local).is_err());
    }
}
