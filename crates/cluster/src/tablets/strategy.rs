//! Replication strategies: the number of replicas of a tablet in each datacenter, and whether there
//! are enough nodes. Pure.
//!
//! `NetworkTopologyStrategy` names a factor for each datacenter; `replication_factor` applies to
//! the datacenters that it does not name. A datacenter may have a rack list instead of a
//! number: each rack gets one replica. Options store it as a CQL list, such as `['r1', 'r2']`.
//! `SimpleStrategy` ignores datacenters: for placement and consistency levels all nodes form one
//! datacenter.

use model::options::OptionMap;
use std::collections::BTreeMap;
use thiserror::Error;

/// The option that gives a factor without naming a datacenter.
pub const FACTOR: &str = "replication_factor";
/// The strategy that ignores datacenters.
pub const SIMPLE: &str = "SimpleStrategy";
/// The strategy with a factor for each datacenter.
pub const NETWORK_TOPOLOGY: &str = "NetworkTopologyStrategy";

/// The number of replicas of each tablet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Replication {
    /// This number on any nodes.
    Simple(u32),
    /// This number in each of these datacenters, and none elsewhere.
    ByDatacenter(BTreeMap<String, u32>),
}

/// Invalid replication options. ScyllaDB has the same texts.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StrategyError {
    /// A factor that is not a number.
    #[error("Replication factor must be numeric and non-negative, found '{0}'")]
    NotANumber(String),
    /// `SimpleStrategy` without a factor.
    #[error("SimpleStrategy requires a replication_factor strategy option.")]
    NoFactor,
    /// An option that is not the name of a datacenter.
    #[error(
        "Unrecognized strategy option {{{option}}} passed to org.apache.cassandra.locator.NetworkTopologyStrategy (datacenters: {known})"
    )]
    UnknownDatacenter {
        /// The option.
        option: String,
        /// The datacenters of the cluster, separated by commas.
        known: String,
    },
    /// More replicas than nodes in a datacenter.
    #[error("Datacenter {datacenter} doesn't have enough nodes for replication_factor={factor}")]
    TooFewNodes {
        /// The datacenter.
        datacenter: String,
        /// Requested replicas.
        factor: u32,
    },
    /// More replicas than nodes, with `SimpleStrategy`.
    #[error("The cluster doesn't have enough nodes for replication_factor={0}")]
    TooFewInAll(u32),
    /// A rack list names a rack that has no node in the datacenter.
    #[error("Rack {rack} doesn't exist in datacenter {datacenter}")]
    UnknownRack {
        /// The datacenter.
        datacenter: String,
        /// The rack.
        rack: String,
    },
    /// An unknown strategy class.
    #[error("Unable to find replication strategy class 'org.apache.cassandra.locator.{0}'")]
    UnknownClass(String),
}

/// A class name without its package.
pub fn short_class(class: &str) -> &str {
    class.rsplit('.').next().unwrap_or(class)
}

/// The stored form of a rack list. An empty list is stored as a factor of 0.
pub fn rack_list(racks: &[String]) -> String {
    if racks.is_empty() {
        return "0".to_owned();
    }
    let quoted: Vec<String> = racks.iter().map(|rack| format!("'{}'", rack.replace('\'', "''"))).collect();
    format!("[{}]", quoted.join(", "))
}

/// The racks of a stored list; `None` if the option is not a list.
pub fn racks_of(text: &str) -> Option<Vec<String>> {
    let mut rest = text.strip_prefix('[')?.strip_suffix(']')?;
    let mut racks = Vec::new();
    loop {
        rest = rest.strip_prefix('\'')?;
        let mut rack = String::new();
        loop {
            let (before, after) = rest.split_once('\'')?;
            rack.push_str(before);
            match after.strip_prefix('\'') {
                Some(after) => {
                    rack.push('\'');
                    rest = after;
                }
                None => {
                    rest = after;
                    break;
                }
            }
        }
        racks.push(rack);
        if rest.is_empty() {
            return Some(racks);
        }
        rest = rest.strip_prefix(", ")?;
    }
}

/// The number of replicas that a stored factor or rack list requests.
pub fn copies(text: &str) -> Option<u32> {
    text.parse().ok().or_else(|| racks_of(text).map(|racks| racks.len() as u32))
}

/// The racks to which a keyspace's options restrict replicas, by datacenter. Datacenters with a
/// numeric factor are left out.
pub fn racks_by_datacenter(options: &OptionMap) -> BTreeMap<String, Vec<String>> {
    options.iter().filter_map(|(name, text)| Some((name.clone(), racks_of(text)?))).collect()
}

/// Refuses a list that names a rack without a node. `known` says whether a datacenter has a rack.
pub fn check_racks<'a>(
    lists: &BTreeMap<String, Vec<String>>,
    known: impl Fn(&str, &str) -> bool + 'a,
) -> Result<(), StrategyError> {
    for (datacenter, racks) in lists {
        if let Some(rack) = racks.iter().find(|rack| !known(datacenter, rack)) {
            return Err(StrategyError::UnknownRack { datacenter: datacenter.clone(), rack: rack.clone() });
        }
    }
    Ok(())
}

fn number(text: &str) -> Result<u32, StrategyError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = digits.then(|| text.parse().ok()).flatten();
    parsed.ok_or_else(|| StrategyError::NotANumber(text.to_owned()))
}

impl Replication {
    /// Interprets a keyspace's options in a cluster with these datacenters.
    pub fn of<'a>(
        options: &OptionMap,
        datacenters: impl IntoIterator<Item = &'a str>,
    ) -> Result<Replication, StrategyError> {
        let class = options.get("class").map_or(NETWORK_TOPOLOGY, |class| short_class(class));
        match class {
            SIMPLE => Ok(Replication::Simple(number(options.get(FACTOR).ok_or(StrategyError::NoFactor)?)?)),
            NETWORK_TOPOLOGY => {
                let known: Vec<&str> = datacenters.into_iter().collect();
                let named = |name: &&String| *name != "class" && *name != FACTOR;
                if let Some(unknown) = options.keys().filter(named).find(|name| !known.contains(&name.as_str())) {
                    return Err(StrategyError::UnknownDatacenter { option: unknown.clone(), known: known.join(", ") });
                }
                let everywhere = options.get(FACTOR).map(|text| number(text)).transpose()?;
                let mut factors = BTreeMap::new();
                for name in known {
                    let own = options.get(name).map(|text| match racks_of(text) {
                        Some(racks) => Ok(racks.len() as u32),
                        None => number(text),
                    });
                    let own = own.transpose()?;
                    if let Some(factor) = own.or(everywhere).filter(|factor| *factor > 0) {
                        factors.insert(name.to_owned(), factor);
                    }
                }
                Ok(Replication::ByDatacenter(factors))
            }
            other => Err(StrategyError::UnknownClass(other.to_owned())),
        }
    }

    /// The total number of replicas.
    pub fn total(&self) -> u32 {
        match self {
            Replication::Simple(factor) => *factor,
            Replication::ByDatacenter(factors) => factors.values().sum(),
        }
    }

    /// Refuses more replicas than nodes. `nodes` has the number of nodes of each datacenter.
    pub fn check(&self, nodes: &BTreeMap<String, u32>) -> Result<(), StrategyError> {
        match self {
            Replication::Simple(factor) if *factor > nodes.values().sum() => Err(StrategyError::TooFewInAll(*factor)),
            Replication::Simple(_) => Ok(()),
            Replication::ByDatacenter(factors) => {
                match factors.iter().find(|(name, factor)| **factor > nodes.get(*name).copied().unwrap_or(0)) {
                    Some((name, factor)) => {
                        Err(StrategyError::TooFewNodes { datacenter: name.clone(), factor: *factor })
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(entries: &[(&str, &str)]) -> OptionMap {
        entries.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    fn by(entries: &[(&str, u32)]) -> Replication {
        Replication::ByDatacenter(entries.iter().map(|(name, factor)| (name.to_string(), *factor)).collect())
    }

    #[test]
    fn replication_options_are_parsed() {
        const NETWORK: &str = "org.apache.cassandra.locator.NetworkTopologyStrategy";
        type Case = (&'static [(&'static str, &'static str)], Result<Replication, &'static str>);
        let cases: Vec<Case> = vec![
            (&[("class", NETWORK), (FACTOR, "3")], Ok(by(&[("dc1", 3), ("dc2", 3)]))),
            (&[("class", NETWORK), (FACTOR, "3"), ("dc2", "1")], Ok(by(&[("dc1", 3), ("dc2", 1)]))),
            (&[("class", NETWORK), (FACTOR, "3"), ("dc2", "0")], Ok(by(&[("dc1", 3)]))),
            (&[("class", NETWORK_TOPOLOGY), ("dc1", "2")], Ok(by(&[("dc1", 2)]))),
            (&[("dc1", "2")], Ok(by(&[("dc1", 2)]))),
            (&[("class", SIMPLE), (FACTOR, "2")], Ok(Replication::Simple(2))),
            (&[("class", SIMPLE)], Err("SimpleStrategy requires a replication_factor strategy option.")),
            (
                &[("class", NETWORK), ("dc9", "1")],
                Err(
                    "Unrecognized strategy option {dc9} passed to org.apache.cassandra.locator.NetworkTopologyStrategy (datacenters: dc1, dc2)",
                ),
            ),
            (&[("dc1", "-1")], Err("Replication factor must be numeric and non-negative, found '-1'")),
            (&[("dc1", "")], Err("Replication factor must be numeric and non-negative, found ''")),
            (&[("class", "Odd")], Err("Unable to find replication strategy class 'org.apache.cassandra.locator.Odd'")),
        ];
        for (given, expected) in cases {
            let found = Replication::of(&options(given), ["dc1", "dc2"]).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{given:?}");
        }
    }

    #[test]
    fn lists_of_racks_are_stored_as_written() {
        let lists: [&[&str]; 4] = [&["r1"], &["r1", "r2"], &["it's", "a, b", "[x]"], &[""]];
        for racks in lists {
            let racks: Vec<String> = racks.iter().map(|rack| (*rack).to_owned()).collect();
            let text = rack_list(&racks);
            assert_eq!(racks_of(&text), Some(racks.clone()), "{text}");
            assert_eq!(copies(&text), Some(racks.len() as u32));
        }
        assert_eq!(rack_list(&[]), "0");
        for other in ["3", "", "[]", "['a'", "['a',]", "['a' 'b']", "[a]", "['a'] "] {
            assert_eq!(racks_of(other), None, "{other}");
        }
        let given = options(&[("class", NETWORK_TOPOLOGY), ("dc1", "['r1', 'r2']"), ("dc2", "1")]);
        assert_eq!(Replication::of(&given, ["dc1", "dc2"]), Ok(by(&[("dc1", 2), ("dc2", 1)])));
        let lists = racks_by_datacenter(&given);
        assert_eq!(lists, BTreeMap::from([("dc1".to_owned(), vec!["r1".to_owned(), "r2".to_owned()])]));
        assert_eq!(check_racks(&lists, |_, _| true), Ok(()));
        let refused = check_racks(&lists, |_, rack| rack == "r1").expect_err("there is one rack only");
        assert_eq!(refused.to_string(), "Rack r2 doesn't exist in datacenter dc1");
    }

    #[test]
    fn more_copies_than_nodes_are_refused() {
        let nodes = BTreeMap::from([("dc1".to_owned(), 3), ("dc2".to_owned(), 1)]);
        assert_eq!(by(&[("dc1", 3), ("dc2", 1)]).check(&nodes), Ok(()));
        let refused = by(&[("dc1", 3), ("dc2", 2)]).check(&nodes).expect_err("two copies on one node");
        assert_eq!(refused.to_string(), "Datacenter dc2 doesn't have enough nodes for replication_factor=2");
        assert_eq!(Replication::Simple(4).check(&nodes), Ok(()));
        assert!(Replication::Simple(5).check(&nodes).is_err());
        assert_eq!(by(&[("dc1", 3), ("dc2", 1)]).total(), 4);
    }
}
