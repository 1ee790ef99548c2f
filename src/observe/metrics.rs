//! Metrics, by the facade of the crate `metrics`. No other module knows that facade. Without the feature `metrics`
//! everything here is empty. [`observe`](crate::observe) tells what the metrics mean.
//!
//! No label takes its values from users, such as names of locks: each value would be a time series for ever.

/// All values that labels can have.
#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "read by the feature only"))]
pub(crate) struct Labels {
    pub(crate) modes: &'static [&'static str],
    pub(crate) outcomes: &'static [&'static str],
    pub(crate) sources: &'static [&'static str],
    pub(crate) reasons: &'static [&'static str],
    pub(crate) connections: &'static [&'static str],
    pub(crate) renewals: &'static [&'static str],
}

#[cfg(not(feature = "metrics"))]
pub(crate) use ignored::*;
#[cfg(feature = "metrics")]
pub(crate) use recorded::*;

#[cfg(feature = "metrics")]
mod recorded {
    use super::Labels;
    use metrics::{Gauge, Unit, counter, gauge, histogram};
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    use std::time::Duration;

    const WAITING: &str = "fairlock_waiting";
    const HELD: &str = "fairlock_held";
    const DISCONNECTED: &str = "fairlock_disconnected";
    const WAIT: &str = "fairlock_wait_seconds";
    const HOLD: &str = "fairlock_hold_seconds";
    const HANDOVER: &str = "fairlock_handover_seconds";
    const ACQUISITIONS: &str = "fairlock_acquisitions_total";
    const GRANTS: &str = "fairlock_grants_total";
    const REQUEUED: &str = "fairlock_requeued_total";
    const LOST: &str = "fairlock_lost_total";
    const RENEWALS: &str = "fairlock_renewals_total";
    const RECONNECTS: &str = "fairlock_reconnects_total";
    const UNREACHED: &str = "fairlock_unreached";
    const QUORUM_SERVERS: &str = "fairlock_quorum_servers";
    const VOTES_LOST: &str = "fairlock_votes_lost_total";

    /// Describes all metrics to the recorder, and starts all counters and gauges at zero. A counter that appeared with
    /// its first event would show no increase.
    pub(crate) fn begin(labels: &Labels) {
        describe();
        for mode in labels.modes {
            drop((gauge!(WAITING, "mode" => *mode), gauge!(HELD, "mode" => *mode)));
            drop((
                counter!(REQUEUED, "mode" => *mode),
                counter!(VOTES_LOST, "mode" => *mode),
            ));
            for outcome in labels.outcomes {
                drop(counter!(ACQUISITIONS, "mode" => *mode, "outcome" => *outcome));
            }
            for source in labels.sources {
                drop(counter!(GRANTS, "mode" => *mode, "source" => *source));
            }
            for reason in labels.reasons {
                drop(counter!(LOST, "mode" => *mode, "reason" => *reason));
            }
        }
        drop((gauge!(UNREACHED), gauge!(QUORUM_SERVERS)));
        for connection in labels.connections {
            drop(gauge!(DISCONNECTED, "connection" => *connection));
            drop(counter!(RECONNECTS, "connection" => *connection));
        }
        for outcome in labels.renewals {
            drop(counter!(RENEWALS, "outcome" => *outcome));
        }
    }

    fn describe() {
        let gauge = |name: &'static str, text: &'static str| describe_gauge!(name, Unit::Count, text);
        let counter = |name: &'static str, text: &'static str| describe_counter!(name, Unit::Count, text);
        let histogram = |name: &'static str, text: &'static str| describe_histogram!(name, Unit::Seconds, text);
        gauge(WAITING, "Acquisitions under way: asking, or in the queue");
        gauge(HELD, "Guards whose hold is not over");
        gauge(DISCONNECTED, "Lost connections that the client has not replaced yet");
        histogram(WAIT, "From the first poll of an acquisition to its end, by outcome");
        histogram(HOLD, "From guard to the end of the hold, by outcome");
        histogram(HANDOVER, "From the arrival of a grant's message to the guard");
        counter(ACQUISITIONS, "Acquisitions that ended, by outcome");
        counter(GRANTS, "Guards handed out, by what told of the grant");
        counter(REQUEUED, "Places in the queue that were lost and asked for again");
        counter(LOST, "Holds that were lost, by reason");
        counter(RENEWALS, "Calls that renew all that is due of one lock");
        counter(RECONNECTS, "Reconnects after a lost connection");
        gauge(UNREACHED, "Servers of a quorum that the client has never reached");
        gauge(QUORUM_SERVERS, "Servers of the quorums that this process uses");
        counter(VOTES_LOST, "Servers that lost a hold which a majority kept");
    }

    /// Adds one to a gauge until it is dropped. It keeps that gauge, so a recorder that is installed in between sees
    /// neither step.
    #[derive(Debug)]
    pub(crate) struct One(Gauge);

    impl One {
        fn more(gauge: Gauge) -> Self {
            gauge.increment(1.0);
            Self(gauge)
        }

        pub(crate) fn waiting(mode: &'static str) -> Self {
            Self::more(gauge!(WAITING, "mode" => mode))
        }

        pub(crate) fn held(mode: &'static str) -> Self {
            Self::more(gauge!(HELD, "mode" => mode))
        }

        pub(crate) fn disconnected(connection: &'static str) -> Self {
            Self::more(gauge!(DISCONNECTED, "connection" => connection))
        }

        pub(crate) fn unreached() -> Self {
            Self::more(gauge!(UNREACHED))
        }

        pub(crate) fn quorum_server() -> Self {
            Self::more(gauge!(QUORUM_SERVERS))
        }
    }

    impl Drop for One {
        fn drop(&mut self) {
            self.0.decrement(1.0);
        }
    }

    pub(crate) fn waited(mode: &'static str, outcome: &'static str, time: Duration) {
        histogram!(WAIT, "mode" => mode, "outcome" => outcome).record(time);
        counter!(ACQUISITIONS, "mode" => mode, "outcome" => outcome).increment(1);
    }

    pub(crate) fn granted(mode: &'static str, source: &'static str) {
        counter!(GRANTS, "mode" => mode, "source" => source).increment(1);
    }

    pub(crate) fn handed_over(mode: &'static str, time: Duration) {
        histogram!(HANDOVER, "mode" => mode).record(time);
    }

    pub(crate) fn requeued(mode: &'static str) {
        counter!(REQUEUED, "mode" => mode).increment(1);
    }

    pub(crate) fn held(mode: &'static str, outcome: &'static str, time: Duration) {
        histogram!(HOLD, "mode" => mode, "outcome" => outcome).record(time);
    }

    pub(crate) fn lost(mode: &'static str, reason: &'static str) {
        counter!(LOST, "mode" => mode, "reason" => reason).increment(1);
    }

    pub(crate) fn renewal(outcome: &'static str) {
        counter!(RENEWALS, "outcome" => outcome).increment(1);
    }

    pub(crate) fn reconnected(connection: &'static str) {
        counter!(RECONNECTS, "connection" => connection).increment(1);
    }

    pub(crate) fn vote_lost(mode: &'static str) {
        counter!(VOTES_LOST, "mode" => mode).increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod ignored {
    use std::time::Duration;

    #[derive(Debug)]
    pub(crate) struct One;

    impl One {
        pub(crate) fn waiting(_mode: &'static str) -> Self {
            Self
        }

        pub(crate) fn held(_mode: &'static str) -> Self {
            Self
        }

        pub(crate) fn disconnected(_connection: &'static str) -> Self {
            Self
        }

        pub(crate) fn unreached() -> Self {
            Self
        }

        pub(crate) fn quorum_server() -> Self {
            Self
        }
    }

    pub(crate) fn begin(_labels: &super::Labels) {}

    pub(crate) fn waited(_mode: &'static str, _outcome: &'static str, _time: Duration) {}

    pub(crate) fn granted(_mode: &'static str, _source: &'static str) {}

    pub(crate) fn handed_over(_mode: &'static str, _time: Duration) {}

    pub(crate) fn requeued(_mode: &'static str) {}

    pub(crate) fn held(_mode: &'static str, _outcome: &'static str, _time: Duration) {}

    pub(crate) fn lost(_mode: &'static str, _reason: &'static str) {}

    pub(crate) fn renewal(_outcome: &'static str) {}

    pub(crate) fn reconnected(_connection: &'static str) {}

    pub(crate) fn vote_lost(_mode: &'static str) {}
}
