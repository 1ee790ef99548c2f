//! The name of a request: `{r|w}{client}:{number}`, and `:{owner}` behind it if the user named an owner, or `:*{weight}` if
//! it asks for several permits.
//!
//! A name is never used again, so every command about a request can be sent twice. Only this module writes and reads names.

use crate::types::limits::MOST_PERMITS;
use crate::types::mode::Mode;
use crate::types::owner::{ClientId, Owner};
use std::fmt::Write;
use std::ops::Range;

/// The parts of a request's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestName<'a> {
    pub(crate) mode: Mode,
    pub(crate) client: &'a str,
    pub(crate) number: u64,
    /// The name of the owner that the user named.
    pub(crate) named_owner: Option<&'a str>,
    /// The permits that its owner takes.
    pub(crate) weight: u32,
    /// The client and the number: the name of the owner, if the user named none.
    own: &'a str,
}

impl<'a> RequestName<'a> {
    pub(crate) fn write(mode: Mode, client: ClientId, number: u64, owner: Option<&str>) -> String {
        let mut name = String::with_capacity(64);
        name.push(match mode {
            Mode::Read => 'r',
            Mode::Write => 'w',
        });
        client.add_to(&mut name);
        // A string takes all that is written.
        let _ = write!(name, ":{number}");
        if let Some(owner) = owner {
            name.push(':');
            name.push_str(owner);
        }
        name
    }

    /// The name of a request to read that takes several permits and has no named owner.
    pub(crate) fn write_weighted(client: ClientId, number: u64, weight: u32) -> String {
        let weight = (weight > 1).then(|| format!("*{weight}"));
        Self::write(Mode::Read, client, number, weight.as_deref())
    }

    /// `None`: no version of the library writes such a name.
    pub(crate) fn read(name: &'a str) -> Option<Self> {
        let (mode, rest) = match (name.strip_prefix('w'), name.strip_prefix('r')) {
            (Some(rest), _) => (Mode::Write, rest),
            (None, Some(rest)) => (Mode::Read, rest),
            (None, None) => return None,
        };
        let (client, rest_of_name) = at_colon(rest);
        let (number, last) = at_colon(rest_of_name.filter(|_| !client.is_empty())?);
        let (named_owner, weight) = match last {
            None => (None, 1),
            Some(last) => match last.rsplit_once('*') {
                None => (Some(last), 1),
                Some(("", weight)) => (None, read_weight(weight).filter(|_| mode == Mode::Read)?),
                // A further request of such an owner.
                Some((owner, weight)) => (Some(owner.strip_suffix(':')?), read_weight(weight)?),
            },
        };
        Some(Self {
            mode,
            client,
            number: number.parse().ok()?,
            named_owner,
            weight,
            own: &rest[..client.len() + 1 + number.len()],
        })
    }

    /// Where the whole name has the named owner.
    pub(crate) fn named_owner_at(&self) -> Option<Range<usize>> {
        // Behind the letter of the mode, the client with the number, and a colon.
        let start = 1 + self.own.len() + 1;
        self.named_owner.map(|owner| start..start + owner.len())
    }

    /// The owner, named or not. `None`: the library could not have written that owner.
    pub(crate) fn owner(&self) -> Option<Owner> {
        Owner::of_name(self.named_owner.unwrap_or(self.own))
    }
}

/// What stands before the first colon, and behind it. In so short a text a search for a `char` costs more, and a message
/// may name a thousand requests.
fn at_colon(text: &str) -> (&str, Option<&str>) {
    match text.bytes().position(|byte| byte == b':') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

fn read_weight(text: &str) -> Option<u32> {
    let weight = text.parse().ok().filter(|weight| (2..=MOST_PERMITS).contains(weight))?;
    (weight.to_string() == text).then_some(weight)
}

/// Whether a request of that name is one to read.
pub(crate) fn is_read(request: &str) -> bool {
    request.starts_with('r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let (client, owner) = (ClientId::new(), Owner::new());
        for (mode, owner) in [(Mode::Read, None), (Mode::Write, Some(owner))] {
            let written = RequestName::write(mode, client, 7, owner.map(|owner| owner.name()).as_deref());
            let name = RequestName::read(&written).expect("a name");
            assert_eq!((name.mode, name.number), (mode, 7));
            assert_eq!(name.client, client.to_string());
            assert_eq!(name.owner(), Some(owner.unwrap_or(Owner::anonymous(client, 7))));
            assert_eq!(name.named_owner_at().map(|at| &written[at]), name.named_owner);
        }
    }

    #[test]
    fn a_weight_stands_where_a_named_owner_would_and_names_none() {
        let client = ClientId::new();
        for weight in [1, 2, MOST_PERMITS] {
            let written = RequestName::write_weighted(client, 7, weight);
            let name = RequestName::read(&written).expect("a name");
            assert_eq!((name.weight, name.named_owner), (weight, None), "{written}");
            assert_eq!(name.owner(), Some(Owner::anonymous(client, 7)), "{written}");
            assert_eq!(written.contains('*'), weight > 1, "{written}");
        }
    }

    #[test]
    fn a_further_request_of_a_weighted_owner_weighs_as_much() {
        let written = "w00000000000000b:2:00000000000000a:7:*3";
        let name = RequestName::read(written).expect("a name");
        assert_eq!((name.weight, name.number), (3, 2));
        assert_eq!(name.named_owner_at().map(|at| &written[at]), Some("00000000000000a:7"));
        assert_eq!(name.owner(), Owner::of_name("00000000000000a:7"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for name in [
            "",
            "w",
            "w0a",
            "w0a:",
            "w0a:x",
            "ä:1",
            "w0a:1:*2",
            "r0a:1:*",
            "r0a:1:*1",
            "r0a:1:*02",
            "r0a:1:*+2",
            "r0a:1:*-2",
            "r0a:1:*1000000001",
        ] {
            assert!(RequestName::read(name).is_none(), "{name:?}");
        }
    }
}
