//! Finds the addresses of the seeds. Names are resolved when a node searches for its cluster.
//!
//! The node waits until all names have addresses. With only some of the addresses, it could create
//! a second cluster beside the cluster of the other seeds.

use cluster::topology::search_progress::SearchProgress;
use rt::time::Duration;
use std::net::SocketAddr;

/// Pause before a name is resolved again.
const PAUSE: Duration = Duration::from_secs(1);
/// The number of attempts between two log lines.
const TELL: u32 = 10;

/// The seeds: where a node looks for others first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seeds {
    /// Seeds with known addresses.
    pub addresses: Vec<SocketAddr>,
    /// Hosts by name, with their ports.
    pub names: Vec<(String, u16)>,
}

impl From<Vec<SocketAddr>> for Seeds {
    fn from(addresses: Vec<SocketAddr>) -> Seeds {
        Seeds { addresses, names: Vec::new() }
    }
}

impl Seeds {
    /// All addresses of the same family as `own`. Waits for names that have none yet. If the node
    /// stops, returns the addresses found so far.
    pub async fn find(&self, own: SocketAddr, progress: &SearchProgress) -> Vec<SocketAddr> {
        let mut addresses = self.addresses.clone();
        for (name, port) in &self.names {
            let mut tries = 0;
            let found = loop {
                let why = match rt::net::lookup(name, *port).await {
                    Ok(found) => match usable(found, own) {
                        found if !found.is_empty() => break found,
                        _ => "it has no address".to_owned(),
                    },
                    Err(error) => error.to_string(),
                };
                progress.set(Some(format!("it waits for the address of the seed {name} ({why})")));
                if tries % TELL == 0 {
                    tracing::warn!(seed = name, why, "the address of a seed cannot be resolved; retrying");
                }
                tries += 1;
                if rt::time::timeout(PAUSE, rt::shard::stopping().cancelled()).await.is_ok() {
                    break Vec::new();
                }
            };
            tracing::info!(seed = name, addresses = ?found, "resolved the address of a seed");
            addresses.extend(found);
        }
        addresses
    }
}

impl Seeds {
    /// The current addresses, without waiting for names that have none.
    pub async fn resolve(&self, own: SocketAddr) -> Vec<SocketAddr> {
        let mut addresses = self.addresses.clone();
        for (name, port) in &self.names {
            match rt::net::lookup(name, *port).await {
                Ok(found) => addresses.extend(usable(found, own)),
                Err(error) => tracing::debug!(seed = name, %error, "the address of a seed cannot be resolved"),
            }
        }
        addresses
    }
}

/// Chooses among the addresses of a host with both families: it listens for other nodes on the
/// family that this node uses.
fn usable(found: Vec<SocketAddr>, own: SocketAddr) -> Vec<SocketAddr> {
    let mut same: Vec<SocketAddr> = found.iter().copied().filter(|at| at.is_ipv4() == own.is_ipv4()).collect();
    same.sort();
    same.dedup();
    if same.is_empty() { found } else { same }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_our_kind_are_used() {
        let four: SocketAddr = ([10, 0, 0, 1], 7000).into();
        let six: SocketAddr = "[::1]:7000".parse().expect("an address");
        assert_eq!(usable(vec![six, four, four], four), [four]);
        assert_eq!(usable(vec![six, four], six), [six]);
        assert_eq!(usable(vec![six], four), [six]);
    }

    #[test]
    fn names_become_addresses() {
        let own = ([127, 0, 0, 1], 7000).into();
        let seeds = Seeds { names: vec![("localhost".into(), 7001)], ..Seeds::from(vec![own]) };
        assert_eq!(rt::block_on(seeds.find(own, &SearchProgress::default())), [own, ([127, 0, 0, 1], 7001).into()]);
    }
}
