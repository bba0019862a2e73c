//! The link to one shard of one node. It connects when it is first needed, reconnects after a loss,
//! and pauses after a failure.

use super::Internode;
use super::channel::{Asking, Channel};
use super::config::Target;
use super::connection::{Connection, End, drive};
use super::dial::{Dialled, dial};
use super::error::CallError;
use super::frame::Frames;
use super::metrics::{Level, count};
use model::HostId;
use rt::net::AsyncWriteExt;
use rt::sync::{Deadline, Notify};
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// How long the other node may take to see that a connection is closed.
const LINGER: Duration = Duration::from_secs(1);

/// The link to a target.
pub(super) struct Link {
    target: Target,
    state: RefCell<State>,
    changed: Notify,
    /// The number of consecutive failures to connect.
    failures: Cell<u32>,
    /// Increases when the link is reset: the result of an earlier attempt is then discarded.
    generation: Cell<u64>,
    waiting: Cell<u64>,
}

enum State {
    Idle,
    Connecting,
    Up(Rc<Channel>),
    Failed { until: Instant, error: CallError },
}

impl Link {
    pub fn new(target: Target) -> Rc<Link> {
        Rc::new(Link {
            target,
            state: RefCell::new(State::Idle),
            changed: Notify::new(),
            failures: Cell::new(0),
            generation: Cell::new(0),
            waiting: Cell::new(0),
        })
    }

    /// The connection, if it is open.
    pub fn up(&self) -> Option<Rc<Channel>> {
        match &*self.state.borrow() {
            State::Up(channel) if channel.is_open() => Some(channel.clone()),
            _ => None,
        }
    }

    /// Waits for the connection, and opens it if necessary.
    pub async fn connected(
        self: &Rc<Self>,
        internode: &Internode,
        deadline: Deadline,
    ) -> Result<Rc<Channel>, CallError> {
        let counters = &internode.counters;
        if self.waiting.get() >= internode.setting.config.waiting as u64 {
            count(&counters.overloaded);
            return Err(CallError::Overloaded);
        }
        let _waits = Level::up(&self.waiting);
        let _pending = Level::up(&counters.pending);
        let mut tried = false;
        loop {
            let changed = self.changed.notified();
            let open = {
                let state = self.state.borrow();
                match &*state {
                    State::Up(channel) if channel.is_open() => return Ok(channel.clone()),
                    State::Connecting => false,
                    // A caller that waited for this attempt gets its error.
                    State::Failed { error, until } if tried || *until > rt::time::now() => {
                        count(&counters.unreachable);
                        return Err(error.clone());
                    }
                    State::Up(_) | State::Idle | State::Failed { .. } => true,
                }
            };
            if open {
                self.open(internode)?;
            }
            tried = true;
            if deadline.limit(changed).await.is_err() {
                count(&counters.timeouts);
                return Err(CallError::Timeout);
            }
        }
    }

    /// Starts to connect.
    fn open(self: &Rc<Self>, internode: &Internode) -> Result<(), CallError> {
        let internode = internode.this()?;
        debug_assert!(self.up().is_none(), "an open connection is used");
        debug_assert!(!matches!(*self.state.borrow(), State::Connecting), "one attempt to connect runs at a time");
        self.state.replace(State::Connecting);
        let (link, generation) = (self.clone(), self.generation.get());
        rt::task::spawn(async move {
            let dialled = internode.stop.unless(Box::pin(dial(&internode, &link.target))).await;
            if link.generation.get() != generation {
                return;
            }
            match dialled.unwrap_or(Err(CallError::Stopping)) {
                Ok(dialled) => link.opened(&internode, dialled),
                Err(error) => link.failed(&internode, error),
            }
        })
        .detach();
        Ok(())
    }

    fn failed(&self, internode: &Internode, error: CallError) {
        let config = &internode.setting.config;
        let failures = self.failures.get();
        self.failures.set(failures.saturating_add(1));
        count(&internode.counters.failed_connects);
        let pause = pause(config.first_pause, config.longest_pause, failures, rt::random::below(1 << 16));
        tracing::debug!(peer = ?self.target, %error, failures, ?pause, "this node cannot connect to another node");
        debug_assert!(matches!(*self.state.borrow(), State::Connecting), "an attempt to connect has failed");
        self.state.replace(State::Failed { until: rt::time::now() + pause, error });
        self.changed.notify_waiters();
    }

    fn opened(&self, internode: &Rc<Internode>, dialled: Dialled) {
        let Dialled { mut socket, party, version, compress } = dialled;
        let Some(inside) = internode.gate.enter() else { return self.failed(internode, CallError::Stopping) };
        self.failures.set(0);
        let config = internode.setting.config;
        let connection = Connection::new(version, compress, internode.counters.clone());
        let channel = Channel::new(connection, config, party);
        debug_assert!(matches!(*self.state.borrow(), State::Connecting), "no open connection is replaced");
        self.state.replace(State::Up(channel.clone()));
        self.changed.notify_waiters();
        let target = self.target.clone();
        rt::task::spawn_in(target.group(), async move {
            let counters = channel.connection.counters.clone();
            let _level = Level::up(&counters.connections);
            let frames = Frames::new(version, config.largest_body);
            let mut role = Asking::new(channel.clone());
            let end = drive(&mut socket, frames, &channel.connection, &mut role).await;
            channel.close(&end.why());
            if let End::Bad(bad) = &end {
                tracing::warn!(peer = ?target, error = %bad, "closing a connection to another node");
            } else {
                tracing::debug!(peer = ?target, why = %end.why(), "a connection to another node has ended");
            }
            let _ = rt::time::timeout(LINGER, socket.shutdown()).await;
            drop(inside);
        })
        .detach();
    }

    /// Drops the connection and the history of failures. Waiting callers start another attempt.
    pub fn reset(&self, why: &Arc<str>) {
        self.give_up(why, State::Idle);
    }

    /// Like [`Link::reset`], but waiting callers get the error that the node is down: another
    /// attempt would only use up their time.
    pub fn end(&self, why: &Arc<str>, host: HostId) {
        self.give_up(why, State::Failed { until: rt::time::now(), error: CallError::Down(host) });
    }

    fn give_up(&self, why: &Arc<str>, after: State) {
        self.generation.set(self.generation.get() + 1);
        self.failures.set(0);
        let before = self.state.replace(after);
        if let State::Up(channel) = before {
            channel.close(why);
        }
        self.changed.notify_waiters();
    }

    /// Clears the history of failures: the next caller connects at once.
    pub fn forgive(&self) {
        let mut state = self.state.borrow_mut();
        if matches!(&*state, State::Failed { .. }) {
            *state = State::Idle;
            self.failures.set(0);
        }
    }
}

/// The pause after a failure that followed `failures` others. The maximum doubles each time. The
/// pause is random, at least half of the maximum. So nodes that lost a node at the same time do not
/// all reconnect at the same time. `chance` is below 2^16.
fn pause(first: Duration, longest: Duration, failures: u32, chance: u64) -> Duration {
    let whole = first.saturating_mul(1 << failures.min(16)).min(longest);
    whole / 2 + (whole / 2).mul_f64(chance as f64 / 65_536.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ() {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(1));
        let least: Vec<u128> = (0..8).map(|n| pause(first, longest, n, 0).as_millis()).collect();
        assert_eq!(least, [25, 50, 100, 200, 400, 500, 500, 500]);
        for failures in [0, 3, 40, u32::MAX] {
            let (low, high) = (pause(first, longest, failures, 0), pause(first, longest, failures, 65_535));
            assert!(low < high && high <= longest && high < low * 2);
        }
    }
}
