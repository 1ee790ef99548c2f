//! Bugs to put into the scripts, or into the client of a quorum, to see that this torture finds them.

use fairlock::testing::Rule;

/// What the scripts are turned into, or what a quorum's client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sabotage {
    /// Who fits enters, whoever waits.
    QueueJump,
    /// A release lets nobody in.
    NoAdmit,
    /// Tokens stay what they are.
    StuckToken,
    /// Leases end a little early.
    EarlyExpiry,
    /// Readers enter beside a writer.
    ReaderBesideWriter,
    /// A second grant to who asks twice.
    ForgetsTheKnown,
    /// A release says that it has ended the hold, and ends nothing.
    IdleRelease,
    /// Half of the servers of a quorum are a majority.
    HalfIsEnough,
    /// A server of a quorum that forgot its holds votes at once.
    NoQuarantine,
    /// A vote counts while its request gives it up.
    CountsGivenUp,
    /// Requests of a quorum do not agree on their places.
    OwnPlaces,
    /// A holder of a quorum is behind the waiters at a server whose vote it lacks.
    HolderBehind,
    /// A hold of a quorum has the least token of its votes.
    LeastToken,
    /// The user of a quorum has the token once one server knows it.
    TokenToldToOne,
}

impl Sabotage {
    /// Turns a script's name and text into what is to run.
    pub fn mutation(self) -> fn(&str, &str) -> String {
        match self {
            Self::QueueJump => |name, text| {
                let rule = "if before or writing and not inside";
                replaced(name == "acquire", text, rule, "if writing and not inside")
            },
            Self::NoAdmit => |name, text| replaced(name == "release", text, "  sweep(true)\n", "  sweep()\n"),
            Self::StuckToken => |_, text| {
                let rule = "seq = seq < us and us or seq + 1";
                replaced(true, text, rule, "seq = seq > 0 and seq or 1")
            },
            Self::EarlyExpiry => |_, text| replaced(true, text, "local at = now + ms\n", "local at = now + ms - 300\n"),
            Self::ReaderBesideWriter => |name, text| {
                let rule = "if before or writing and not inside or";
                let new = "if before or writing and write and not inside or";
                replaced(name == "acquire", text, rule, new)
            },
            Self::ForgetsTheKnown => |name, text| {
                let rule = "known = call('ZSCORE', LEASES, request)";
                replaced(name == "acquire", text, rule, "known = false")
            },
            Self::IdleRelease => {
                |name, text| replaced(name == "release", text, "  ended = drop(ARGV[i])\n", "  ended = 2\n")
            }
            // The client has the bug.
            _ => |_, text| text.to_owned(),
        }
    }

    /// The rule that a quorum's client breaks.
    pub fn rule(self) -> Option<Rule> {
        Some(match self {
            Self::HalfIsEnough => Rule::Majority,
            Self::NoQuarantine => Rule::Quarantine,
            Self::CountsGivenUp => Rule::GivingUp,
            Self::OwnPlaces => Rule::Places,
            Self::HolderBehind => Rule::Holders,
            Self::LeastToken => Rule::Tokens,
            Self::TokenToldToOne => Rule::Announcing,
            _ => return None,
        })
    }
}

fn replaced(here: bool, text: &str, rule: &str, new: &str) -> String {
    if !here {
        return text.to_owned();
    }
    // A sabotage that changes nothing would look like one that nobody noticed.
    assert_eq!(text.matches(rule).count(), 1, "the scripts have changed: {rule}");
    text.replace(rule, new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn each_sabotage_changes_a_script_or_breaks_a_rule() {
        for sabotage in Sabotage::value_variants() {
            let scripts = fairlock::testing::scripts();
            let changed = |(name, [text, _]): &(&str, [&str; 2])| (sabotage.mutation())(name, text) != *text;
            assert_ne!(scripts.iter().any(changed), sabotage.rule().is_some(), "{sabotage:?}");
        }
    }
}
