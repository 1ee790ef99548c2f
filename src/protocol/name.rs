//! The name of a request: `{r|w}{client}:{number}`, and `:{owner}` behind it if the user named an owner.
//!
//! A name is never used again, so every command about a request can be sent twice. Only this module writes and reads names.

use crate::types::mode::Mode;
use crate::types::owner::{ClientId, Owner};

/// The parts of a request's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestName<'a> {
    pub(crate) mode: Mode,
    pub(crate) client: &'a str,
    pub(crate) number: u64,
    /// The name of the owner that the user named.
    pub(crate) named_owner: Option<&'a str>,
    /// The text behind the mode. A request without a named owner has an owner of that name.
    rest: &'a str,
}

impl<'a> RequestName<'a> {
    pub(crate) fn write(mode: Mode, client: ClientId, number: u64, owner: Option<&str>) -> String {
        let mode = match mode {
            Mode::Read => 'r',
            Mode::Write => 'w',
        };
        match owner {
            Some(owner) => format!("{mode}{client}:{number}:{owner}"),
            None => format!("{mode}{client}:{number}"),
        }
    }

    /// `None`: no version of the library writes such a name.
    pub(crate) fn read(name: &'a str) -> Option<Self> {
        let (mode, rest) = match (name.strip_prefix('w'), name.strip_prefix('r')) {
            (Some(rest), _) => (Mode::Write, rest),
            (None, Some(rest)) => (Mode::Read, rest),
            (None, None) => return None,
        };
        let mut parts = rest.splitn(3, ':');
        Some(Self {
            mode,
            client: parts.next().filter(|client| !client.is_empty())?,
            number: parts.next()?.parse().ok()?,
            named_owner: parts.next(),
            rest,
        })
    }

    /// The owner, named or not. `None`: the library could not have written that owner.
    pub(crate) fn owner(&self) -> Option<Owner> {
        Owner::of_name(self.named_owner.unwrap_or(self.rest))
    }
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
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for name in ["", "w", "w0a", "w0a:", "w0a:x", "ä:1"] {
            assert!(RequestName::read(name).is_none(), "{name:?}");
        }
    }
}
