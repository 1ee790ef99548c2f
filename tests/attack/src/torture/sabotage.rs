//! Bugs to put into the scripts, to see that this torture finds them.

/// What the scripts are turned into.
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
}

impl Sabotage {
    /// Turns a script's name and text into what is to run.
    pub fn mutation(self) -> fn(&str, &str) -> String {
        match self {
            Self::QueueJump => |name, text| {
                let rule = "if fits(request, owner) and (inside or first) then";
                replaced(name == "acquire", text, rule, "if fits(request, owner) then")
            },
            Self::NoAdmit => |name, text| {
                let rule = "if waiting > 0 then reply[1] = sweep(true) end";
                replaced(
                    name == "release",
                    text,
                    rule,
                    "if waiting > 0 then reply[1] = sweep(false) end",
                )
            },
            Self::StuckToken => |name, text| {
                let text = replaced(name == "acquire", text, "math.max(seq + 1, us)", "seq + 0");
                replaced(
                    true,
                    &text,
                    "math.max(count('seq') + 1, clock())",
                    "math.max(count('seq'), 1)",
                )
            },
            Self::EarlyExpiry => |_, text| {
                let rule = "tonumber(first[2]) > now_ms() then";
                replaced(true, text, rule, "tonumber(first[2]) > now_ms() + 300 then")
            },
            Self::ReaderBesideWriter => |_, text| {
                let rule = "if state.writer then return state.writer == owner end";
                let new = "if state.writer then return state.writer == owner or not writes(request) end";
                replaced(true, text, rule, new)
            },
            Self::ForgetsTheKnown => |name, text| {
                let rule = "known = redis.call('ZSCORE', LEASES, request)";
                replaced(name == "acquire", text, rule, "known = false")
            },
        }
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
    fn each_sabotage_changes_a_script() {
        for sabotage in Sabotage::value_variants() {
            let scripts = fairlock::testing::scripts();
            let changed = |(name, [text, _]): &(&str, [&str; 2])| (sabotage.mutation())(name, text) != *text;
            assert!(scripts.iter().any(changed), "{sabotage:?}");
        }
    }
}
