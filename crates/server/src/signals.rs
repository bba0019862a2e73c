//! Signals: some stop the node, some make it reload its settings, and some are ignored.
//!
//! Without a handler each of them would end the process at once, without an orderly stop.

use crate::config::live::Live;
use crate::config::{Config, live};
use crate::remote::RemoteShards;
use rt::shard::PerShard;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that stop the node in order.
const STOP: &[(&str, i32)] =
    &[("SIGINT", libc::SIGINT), ("SIGTERM", libc::SIGTERM), ("SIGQUIT", libc::SIGQUIT), ("SIGPWR", libc::SIGPWR)];
/// Signals that are logged and ignored.
const IGNORED: &[(&str, i32)] = &[
    ("SIGUSR1", libc::SIGUSR1),
    ("SIGUSR2", libc::SIGUSR2),
    ("SIGALRM", libc::SIGALRM),
    ("SIGVTALRM", libc::SIGVTALRM),
    ("SIGIO", libc::SIGIO),
];
/// The signal to read the settings again.
const RELOAD: &str = "SIGHUP";

type Named = Vec<(&'static str, Signal)>;

fn open(signals: &[(&'static str, i32)]) -> io::Result<Named> {
    signals.iter().map(|(name, number)| Ok((*name, signal(SignalKind::from_raw(*number))?))).collect()
}

/// The name of the next signal that arrives.
async fn next(signals: &mut Named) -> &'static str {
    poll_fn(|cx| {
        let arrived = signals.iter_mut().find_map(|(name, signal)| signal.poll_recv(cx).is_ready().then_some(*name));
        arrived.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Starts listening. The future returns the name of the first signal that asks for a stop.
pub(crate) fn listen() -> io::Result<(impl Future<Output = &'static str>, OtherSignals)> {
    let mut stop = open(STOP)?;
    let mut others = open(IGNORED)?;
    others.push((RELOAD, signal(SignalKind::hangup())?));
    // A file that reaches the limit of its size (RLIMIT_FSIZE): the write returns the error.
    let file_size = signal(SignalKind::from_raw(libc::SIGXFSZ))?;
    Ok((async move { next(&mut stop).await }, OtherSignals { others, _file_size: file_size }))
}

/// Signals that do not stop the node.
pub(crate) struct OtherSignals {
    others: Named,
    _file_size: Signal,
}

impl OtherSignals {
    /// Handles them for as long as it is polled.
    async fn handle(mut self, reload: impl AsyncFn()) {
        loop {
            match next(&mut self.others).await {
                RELOAD => reload().await,
                signal => tracing::info!(signal, "the signal is ignored"),
            }
        }
    }
}

/// The settings of all shards, for SIGHUP.
pub(crate) struct LiveSettings {
    /// With which the node was started.
    started: Config,
    remote: RemoteShards<PerShard<Live>>,
}

impl LiveSettings {
    pub fn new(started: &Config, remote: RemoteShards<PerShard<Live>>) -> LiveSettings {
        LiveSettings { started: started.clone(), remote }
    }

    /// Handles signals for as long as it is polled. SIGHUP has `read` called on a thread of its
    /// own: the file can be slow, and this thread serves SIGTERM, metrics and administration.
    pub async fn handle(
        self,
        signals: OtherSignals,
        read: impl Fn() -> Result<Config, String> + Send + Sync + 'static,
    ) {
        let read = Arc::new(read);
        let reload = async || {
            let read = read.clone();
            let config = rt::small_file::on_own_thread("config-reload", move || read()).await;
            self.reload(config.unwrap_or_else(|error| Err(format!("cannot read it: {error}")))).await;
        };
        signals.handle(reload).await;
    }

    /// Sets the settings that can be changed while the node runs to their values in `read`.
    async fn reload(&self, read: Result<Config, String>) {
        let new = match read {
            Ok(new) => new,
            Err(why) => return tracing::error!(why, "SIGHUP: the configuration is wrong, and no setting is changed"),
        };
        let later = live::changed(&self.started, &new, false);
        if !later.is_empty() {
            tracing::warn!(
                settings = later.join(", "),
                "SIGHUP: these settings changed and take effect at the next start"
            );
        }
        let changed = self.remote.call_all(move |live| {
            let new = new.clone();
            async move { live.try_get().map(|live| live.reload(&new)).unwrap_or_default() }
        });
        match changed.await {
            Ok(changed) => {
                let changed = changed.first().map(|names| names.join(", ")).unwrap_or_default();
                tracing::info!(changed, "SIGHUP: the configuration was reloaded");
            }
            Err(_) => tracing::info!("SIGHUP: the node is stopping, and no setting is changed"),
        }
    }
}
