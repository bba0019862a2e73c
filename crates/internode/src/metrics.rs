//! The metrics of a shard's internode connections.

use std::cell::Cell;

macro_rules! counters {
    ($( $(#[doc = $doc:literal])+ $name:ident; )+) => {
        /// Counters since the start, and current values.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct InternodeMetrics {
            $( $(#[doc = $doc])+ pub $name: u64, )+
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $( pub $name: Cell<u64>, )+
        }

        impl Counters {
            pub fn read(&self) -> InternodeMetrics {
                InternodeMetrics { $( $name: self.$name.get(), )+ }
            }
        }
    };
}

counters! {
    /// Open outgoing connections.
    connections;
    /// Open incoming connections.
    served_connections;
    /// Requests sent.
    requests_sent;
    /// Responses received.
    replied;
    /// Responses that are refusals.
    refused;
    /// Requests that timed out.
    timeouts;
    /// Requests whose connection was lost.
    lost;
    /// Requests not sent because the node was down or unreachable.
    unreachable;
    /// Requests not sent because too many were waiting.
    overloaded;
    /// Requests cancelled by their callers.
    cancelled;
    /// Requests that wait for their responses.
    wait_reply;
    /// Requests that wait for room or for a connection.
    pending;
    /// Requests of other nodes that were started.
    served;
    /// Requests of other nodes whose handlers had to wait.
    served_later;
    /// Requests of other nodes in progress.
    serving;
    /// Times that reading of a connection paused because of too many requests or response bytes.
    blocked;
    /// Bytes sent.
    sent;
    /// Bytes received.
    received;
    /// Failed attempts to connect.
    failed_connects;
    /// Connections rejected by this node or by other nodes.
    rejected;
    /// Incoming connections that did not begin like one between nodes.
    garbage;
}

/// Increments a counter.
pub(super) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// Increments a current value, and decrements it when dropped.
pub(super) struct Level<'a>(&'a Cell<u64>);

impl<'a> Level<'a> {
    pub fn up(counter: &'a Cell<u64>) -> Level<'a> {
        count(counter);
        Level(counter)
    }
}

impl Drop for Level<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
