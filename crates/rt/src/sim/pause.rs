//! A simulated shard that can be paused, like one of a suspended machine: none of its tasks run,
//! while time passes and messages arrive.

use crate::executor::ShardFuture;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;

pub(super) struct PausableShard {
    shard: ShardFuture,
    /// The world's time.
    now: Rc<Cell<Duration>>,
    /// When the node resumes, in the world's time.
    until: Rc<Cell<Duration>>,
    wait: Option<Pin<Box<Sleep>>>,
}

impl PausableShard {
    pub fn new(shard: ShardFuture, now: Rc<Cell<Duration>>, until: Rc<Cell<Duration>>) -> PausableShard {
        PausableShard { shard, now, until, wait: None }
    }
}

impl Future for PausableShard {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            if let Some(wait) = &mut this.wait {
                ready!(wait.as_mut().poll(cx));
                this.wait = None;
            }
            if this.now.get() >= this.until.get() {
                return Pin::new(&mut this.shard).poll(cx);
            }
            // Check again after each step of simulated time: the node may be resumed early.
            this.wait = Some(Box::pin(tokio::time::sleep(Duration::from_millis(1))));
        }
    }
}
