//! What a shard counts of its connections to other nodes.

use std::cell::Cell;

macro_rules! counters {
    ($( $(#[doc = $doc:literal])+ $name:ident; )+) => {
        /// Counts since the start, and numbers of now.
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
    /// Connections to other nodes that are open now.
    connections;
    /// Connections of other nodes that are open now.
    served_connections;
    /// Requests sent.
    requests_sent;
    /// Answers received.
    replied;
    /// Of them those that were refusals.
    refused;
    /// Requests whose time ran out.
    timeouts;
    /// Requests whose connection was lost.
    lost;
    /// Requests that were not sent, because the node was down or could not be reached.
    unreachable;
    /// Requests that were not sent, because too many waited already.
    overloaded;
    /// Requests whose callers went away.
    cancelled;
    /// Requests that wait for their answers now.
    wait_reply;
    /// Requests that wait for room or for a connection now.
    pending;
    /// Requests of other nodes taken up.
    served;
    /// Of them those that could not be answered at once.
    served_later;
    /// Requests of other nodes that are being worked on now.
    serving;
    /// Times that reading of a connection stopped because its requests or its answers were too many.
    blocked;
    /// Bytes sent.
    sent;
    /// Bytes received.
    received;
    /// Connections that failed to come about.
    failed_connects;
    /// Connections that were rejected, by us or by the others.
    rejected;
    /// Connections that did not begin as one between nodes does.
    garbage;
}

/// Counts one more.
pub(super) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// A number of now that goes up, and down again when this is dropped.
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
