//! CREATE, ALTER and DROP KEYSPACE.
//!
//! Every table has tablets, whatever the strategy. SimpleStrategy is accepted as a way to set a
//! replication factor.

use super::options::properties::Properties;
use super::{PlannedChange, first_types, names};
use crate::api::{SchemaAction, SchemaTarget};
use crate::error::Error;
use crate::guardrails::Guardrails;
use crate::syntax::ast::{AlterKeyspace, CreateKeyspace, DropKeyspace};
use cluster::Metadata;
use cluster::metadata::{Keyspace, KeyspaceDefinition, NodeInfo, Op, builtin};
use cluster::placement;
use cluster::tablets::allocator::{self, Host};
use cluster::tablets::strategy::{Replication, check_racks, copies, rack_list, racks_by_datacenter, racks_of};
use cluster::tablets::transition::{Stage, Transition, TransitionKind};
use cluster::topology::features;
use model::options::OptionMap;
use std::collections::{BTreeMap, BTreeSet};

const PACKAGE: &str = "org.apache.cassandra.locator.";
const SIMPLE: &str = "SimpleStrategy";
const NETWORK_TOPOLOGY: &str = "NetworkTopologyStrategy";
const FACTOR: &str = "replication_factor";

pub(super) fn create(
    metadata: &Metadata,
    node: &NodeInfo,
    guardrails: &Guardrails,
    statement: &CreateKeyspace,
) -> Result<PlannedChange, Error> {
    let name = statement.name.as_str();
    if names::is_system(&name.to_lowercase()) {
        return Err(Error::Unauthorized("system keyspace is not user-modifiable.".into()));
    }
    names::check_keyspace_name(name)?;
    let properties = Properties::new(&statement.options)?;
    let hosts = placement::hosts(metadata, node);
    let mut warnings = Vec::new();
    let definition = KeyspaceDefinition {
        name: name.to_owned(),
        replication: replication(name, &hosts, properties.map_with_racks("replication")?.unwrap_or_default(), None)?,
        durable_writes: properties.boolean("durable_writes")?.unwrap_or(true),
        tablets: tablets(&properties, &mut warnings)?.unwrap_or_default(),
    };
    check_others(&properties)?;
    check_rack_lists(&definition, None, &hosts)?;
    if metadata.keyspace(name).is_some() {
        if statement.if_not_exists {
            return Ok(PlannedChange::nothing());
        }
        return Err(Error::AlreadyExists {
            keyspace: name.to_owned(),
            table: String::new(),
            message: format!("Cannot add existing keyspace \"{name}\""),
        });
    }
    warnings.extend(guardrails.check_replication(&definition)?);
    warnings.extend(too_few_nodes(&definition, &hosts));
    let ops = vec![Op::PutKeyspace(definition)];
    Ok(PlannedChange::new(ops, SchemaAction::Created, SchemaTarget::Keyspace, name).warned(warnings))
}

pub(super) fn alter(
    metadata: &Metadata,
    node: &NodeInfo,
    guardrails: &Guardrails,
    statement: &AlterKeyspace,
) -> Result<PlannedChange, Error> {
    let name = statement.name.as_str();
    let is_built_in = builtin::is_built_in(name);
    if !is_built_in {
        names::check_modifiable(name)?;
    }
    let Some(keyspace) = metadata.keyspace(name) else {
        if statement.if_exists {
            return Ok(PlannedChange::nothing());
        }
        return Err(Error::invalid(format!("Unknown keyspace {name}")));
    };
    let properties = Properties::new(&statement.options)?;
    let mut definition = keyspace.definition.clone();
    let (mut warnings, mut wanted, mut first) = (Vec::new(), None, Vec::new());
    let hosts = placement::hosts(metadata, node);
    if let Some(options) = properties.map_with_racks("replication")? {
        let everywhere = options.get(FACTOR).cloned();
        let altered = replication(name, &hosts, options, Some(&definition.replication))?;
        warnings.extend(everywhere.and_then(|factor| kept_factors(&factor, &definition.replication, &altered)));
        if is_enabled(&definition.tablets) && !is_built_in {
            check_step(&definition.replication, &altered, &hosts)?;
            check_racks_step(&definition.replication, &altered)?;
        }
        let before = std::mem::replace(&mut definition.replication, altered);
        check_rack_lists(&definition, Some(&before), &hosts)?;
        warnings.extend(guardrails.check_replication(&definition)?);
        warnings.extend(too_few_nodes(&definition, &hosts));
        if let [only] = &hosts[..]
            && definition.replication_factor() > 0
            && !is_built_in
        {
            first = first_replicas(keyspace, only);
        }
        if hosts.len() > 1 && !keyspace.tables.is_empty() && !is_built_in {
            let altered = definition.replication.clone();
            match change_of_replicas(metadata, keyspace, &altered, &hosts)? {
                None => {}
                // Levels count as before until the replicas are there.
                Some(Replicas::MoreOrElsewhere) => {
                    definition.replication = before;
                    wanted = Some(altered);
                }
                Some(Replicas::Fewer) => wanted = Some(altered),
            }
        }
    }
    if let Some(durable) = properties.boolean("durable_writes")? {
        definition.durable_writes = durable;
    }
    if let Some(tablets) = tablets(&properties, &mut warnings)? {
        if is_enabled(&tablets) != is_enabled(&definition.tablets) {
            return Err(Error::invalid("Cannot alter replication strategy vnode/tablets flavor"));
        }
        definition.tablets = tablets;
    }
    check_others(&properties)?;
    let wanted = wanted.map(|wanted| Op::PutWantedReplication { keyspace: name.to_owned(), replication: Some(wanted) });
    let ops = std::iter::once(Op::PutKeyspace(definition)).chain(wanted).chain(first).collect();
    Ok(PlannedChange::new(ops, SchemaAction::Updated, SchemaTarget::Keyspace, name).warned(warnings))
}

pub(super) fn drop(metadata: &Metadata, statement: &DropKeyspace) -> Result<PlannedChange, Error> {
    let name = statement.name.as_str();
    names::check_modifiable(name)?;
    let Some(keyspace) = metadata.keyspace(name) else {
        if statement.if_exists {
            return Ok(PlannedChange::nothing());
        }
        return Err(Error::Configuration(format!("Cannot drop non existing keyspace '{name}'.")));
    };
    let mut ops = vec![Op::DropKeyspace(name.to_owned())];
    ops.extend(keyspace.tables.values().filter_map(|table| first_types::retire(table)));
    Ok(PlannedChange::new(ops, SchemaAction::Dropped, SchemaTarget::Keyspace, name))
}

/// The replication options in their stored form: the class with its package, and a factor or a list
/// of racks for each datacenter.
fn replication(
    keyspace: &str,
    hosts: &[Host],
    mut options: OptionMap,
    old: Option<&OptionMap>,
) -> Result<OptionMap, Error> {
    let written = options.remove("class").unwrap_or_else(|| NETWORK_TOPOLOGY.to_owned());
    let class = written.strip_prefix(PACKAGE).unwrap_or(&written);
    let mut out = OptionMap::from([("class".to_owned(), format!("{PACKAGE}{class}"))]);
    match class {
        SIMPLE => {
            let factor = options.remove(FACTOR).ok_or_else(|| {
                Error::Configuration("SimpleStrategy requires a replication_factor strategy option.".into())
            })?;
            out.insert(FACTOR.to_owned(), checked_factor(factor)?);
            check_unused(keyspace, class, &options, "")?;
        }
        NETWORK_TOPOLOGY => {
            let (racks, altered) = (placement::racks(hosts), old.is_some());
            let listed = old.map(racks_by_datacenter).unwrap_or_default();
            let old = old.into_iter().flatten().filter(|(key, _)| *key != "class");
            let mut old: OptionMap = old.map(|(key, factor)| (key.clone(), factor.clone())).collect();
            let from_simple = old.remove(FACTOR).filter(|_| options.is_empty());
            let everywhere = options.remove(FACTOR).or(from_simple).map(checked_factor).transpose()?;
            for datacenter in racks.keys() {
                let kept = old.remove(*datacenter).filter(|_| everywhere.is_some());
                let before = listed.get(*datacenter);
                if let Some(factor) = options.remove(*datacenter).or(kept).or_else(|| everywhere.clone()) {
                    let factor = match racks_of(&factor) {
                        Some(_) => factor,
                        None => factor_after(datacenter, checked_factor(factor)?, before)?,
                    };
                    out.insert((*datacenter).to_owned(), factor);
                }
            }
            if out.len() == 1 && altered && options.is_empty() {
                return Err(Error::Configuration(
                    "Configuration for at least one datacenter must be present".to_owned(),
                ));
            }
            if out.len() == 1 {
                // No factor is given: one replica in each rack.
                for (datacenter, racks) in &racks {
                    out.insert((*datacenter).to_owned(), racks.len().to_string());
                }
            }
            let datacenters: Vec<&str> = racks.keys().copied().collect();
            check_unused(keyspace, class, &options, &format!(" (datacenters: {})", datacenters.join(", ")))?;
        }
        "LocalStrategy" | "EverywhereStrategy" => {
            return Err(Error::Configuration(format!("{class} is for internal use only")));
        }
        _ => {
            return Err(Error::Configuration(format!("Unable to find replication strategy class '{PACKAGE}{class}'")));
        }
    }
    Ok(out)
}

/// A warning about datacenters that keep a factor other than `everywhere`. As in Cassandra and
/// ScyllaDB, `replication_factor` applies only to datacenters without a factor.
fn kept_factors(everywhere: &str, before: &OptionMap, after: &OptionMap) -> Option<String> {
    let is_kept = |(name, factor): &(&String, &String)| {
        !matches!(name.as_str(), "class" | FACTOR) && before.get(*name) == Some(*factor) && *factor != everywhere
    };
    let kept: Vec<String> =
        after.iter().filter(is_kept).map(|(name, factor)| format!("{name} keeps {factor}")).collect();
    (!kept.is_empty()).then(|| {
        format!(
            "replication_factor applies only to datacenters without a replication factor: {}. Name the datacenter to change its factor.",
            kept.join(", ")
        )
    })
}

/// The stored form of a numeric factor for a datacenter that has this rack list so far. The
/// list stays if the number equals its length. The number 0 removes it. No other number is
/// accepted.
fn factor_after(datacenter: &str, factor: String, racks: Option<&Vec<String>>) -> Result<String, Error> {
    match racks {
        Some(racks) if copies(&factor) == Some(racks.len() as u32) => Ok(rack_list(racks)),
        Some(_) if copies(&factor) != Some(0) => Err(Error::Configuration(format!(
            "The replication factor of datacenter {datacenter} is a rack list and cannot be altered to the number {factor}"
        ))),
        _ => Ok(factor),
    }
}

/// Checks rack lists: the racks exist, are distinct, and the keyspace has tablets. `before`:
/// the options so far; lists that stay as they are may name racks whose nodes have left.
fn check_rack_lists(definition: &KeyspaceDefinition, before: Option<&OptionMap>, hosts: &[Host]) -> Result<(), Error> {
    let mut lists = racks_by_datacenter(&definition.replication);
    let before = before.map(racks_by_datacenter).unwrap_or_default();
    if !lists.is_empty() && !is_enabled(&definition.tablets) {
        return Err(Error::Configuration(format!(
            "Keyspace {} has no tablets: its replication factors cannot be rack lists",
            definition.name
        )));
    }
    for (datacenter, racks) in &lists {
        if let Some(twice) = racks.iter().enumerate().find(|(at, rack)| racks[..*at].contains(rack)) {
            return Err(Error::Configuration(format!("Rack {} is listed twice for datacenter {datacenter}", twice.1)));
        }
    }
    let known = placement::racks(hosts);
    let is_known = |datacenter: &str, rack: &str| known.get(datacenter).is_some_and(|racks| racks.contains_key(rack));
    lists.retain(|datacenter, racks| before.get(datacenter) != Some(racks));
    for (datacenter, racks) in &lists {
        let is_left = |rack: &&String| before.get(datacenter).is_some_and(|old| old.contains(rack));
        if let Some(rack) = racks.iter().filter(is_left).find(|rack| !is_known(datacenter, rack)) {
            return Err(Error::Configuration(format!(
                "Rack {rack} of datacenter {datacenter} has no node that can take replicas: remove it from the list first"
            )));
        }
    }
    check_racks(&lists, is_known).map_err(|error| Error::Configuration(error.to_string()))
}

/// Checks that rack lists change as ScyllaDB allows: by one rack, or from factors to lists
/// without any other change.
fn check_racks_step(before: &OptionMap, after: &OptionMap) -> Result<(), Error> {
    let (old, new) = (racks_by_datacenter(before), racks_by_datacenter(after));
    let number = |options: &OptionMap, name: &str| options.get(name).and_then(|text| copies(text)).unwrap_or(0);
    let converts = |name: &String| !old.contains_key(name) && number(before, name) > 0;
    if new.keys().any(converts) {
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let changes = |name: &&&String| {
            number(before, name) != number(after, name)
                || old.get(**name).is_some_and(|racks| new.get(**name) != Some(racks))
        };
        return match names.iter().filter(|name| ***name != "class" && ***name != FACTOR).find(changes) {
            Some(name) => Err(Error::invalid(format!(
                "A statement that replaces a replication factor by a rack list cannot change a number of replicas or another rack list (datacenter {name}): use a separate statement"
            ))),
            None => Ok(()),
        };
    }
    for (datacenter, racks) in &new {
        let before = old.get(datacenter).map_or(&[][..], Vec::as_slice);
        let added = racks.iter().filter(|rack| !before.contains(rack)).count();
        let removed = before.iter().filter(|rack| !racks.contains(rack)).count();
        if added + removed > 1 {
            return Err(Error::invalid(format!(
                "The rack list of datacenter {datacenter} can be altered by one rack at a time"
            )));
        }
    }
    Ok(())
}

/// The operations that give tablets without replicas their first one, on the only node of the
/// cluster. There is nothing to copy, so each transition ends at once.
fn first_replicas(keyspace: &Keyspace, only: &Host) -> Vec<Op> {
    let mut ops = Vec::new();
    for table in keyspace.tables.values().filter(|table| table.tablets.replicas(0).is_empty()) {
        let (id, placed) = (table.schema.id, cluster::tablets::allocate(table.tablets.count(), only.id, &only.load));
        for tablet in 0..placed.count() {
            let (kind, stage) = (TransitionKind::Rebuild, Stage::EndMigration);
            let new = Transition { kind, stage, new_replicas: placed.replicas(tablet).into(), session: None };
            ops.push(Op::PutTransition(Box::new(new.written(id, tablet))));
            ops.push(Op::EndTransition { table: id, tablet, moved: true });
        }
    }
    ops
}

/// Whether all tablets have their replicas in the listed racks already.
fn is_in_place(keyspace: &Keyspace, lists: &RackSets, hosts: &[Host]) -> bool {
    lists.iter().all(|(datacenter, racks)| {
        let is_there = |host: &&Host| host.datacenter == *datacenter;
        let rack_of = |host| hosts.iter().filter(is_there).find(|known| known.id == host).map(|known| &known.rack);
        keyspace.tables.values().all(|table| {
            let is_idle = table.tablets.transitions().next().is_none();
            is_idle
                && (0..table.tablets.count()).all(|tablet| {
                    let replicas = table.tablets.replicas(tablet).iter();
                    let found: Vec<&String> = replicas.filter_map(|replica| rack_of(replica.host)).collect();
                    found.len() == racks.len() && racks.iter().all(|rack| found.contains(&rack))
                })
        })
    })
}

fn checked_factor(factor: String) -> Result<String, Error> {
    match factor.parse::<u32>() {
        Ok(_) if factor.bytes().all(|byte| byte.is_ascii_digit()) => Ok(factor),
        _ => {
            Err(Error::Configuration(format!("Replication factor must be numeric and non-negative, found '{factor}'")))
        }
    }
}

/// Refuses options that the class did not use. `possible`: the options of the class, for the error.
fn check_unused(keyspace: &str, class: &str, options: &OptionMap, possible: &str) -> Result<(), Error> {
    match options.keys().next() {
        Some(unknown) => Err(Error::Configuration(format!(
            "Unrecognized strategy option {{{unknown}}} passed to {PACKAGE}{class} for keyspace {keyspace}{possible}"
        ))),
        None => Ok(()),
    }
}

/// The `tablets` option, with `enabled` and `initial`.
fn tablets(properties: &Properties, warnings: &mut Vec<String>) -> Result<Option<OptionMap>, Error> {
    let Some(options) = properties.map("tablets")? else { return Ok(None) };
    let options: OptionMap = options.into_iter().map(|(name, value)| (name, value.to_lowercase())).collect();
    for (name, value) in &options {
        match name.as_str() {
            "enabled" => match value.as_str() {
                "true" => {}
                "false" => warnings.push(
                    "Tables are always made of tablets here: the keyspace option tablets = {'enabled': false} has no effect"
                        .to_owned(),
                ),
                _ => return Err(Error::Configuration(format!("Tablets enabled value must be true or false; found: {value}"))),
            },
            "initial" => {
                if value.parse::<u32>().is_err() {
                    return Err(Error::Configuration(format!("Initial tablets value should be numeric; found {value}")));
                }
                if value != "0" {
                    warnings.push(
                        "Keyspace `initial` tablets option is deprecated.  Use per-table tablet options instead.".to_owned(),
                    );
                }
            }
            _ => return Err(Error::Configuration(format!("Unrecognized tablets option {name}"))),
        }
    }
    Ok(Some(options))
}

/// Whether the `tablets` option requests tablets, which is the default.
fn is_enabled(tablets: &OptionMap) -> bool {
    tablets.get("enabled").is_none_or(|enabled| enabled == "true")
}

/// Checks the options other than replication, tablets and durable writes.
fn check_others(properties: &Properties) -> Result<(), Error> {
    if let Some(storage) = properties.map("storage")?
        && storage.get("type").is_some_and(|kind| !kind.eq_ignore_ascii_case("local"))
    {
        return Err(Error::not_supported("storage elsewhere than in local files"));
    }
    if let Some(storage) = properties.map("storage")?
        && let Some(other) = storage.keys().find(|name| *name != "type")
    {
        return Err(Error::invalid(format!("Storage in local files has no option {other}")));
    }
    if let Some(consistency) = properties.text("consistency")?
        && !consistency.eq_ignore_ascii_case("eventual")
    {
        return Err(Error::not_supported("a consistency other than 'eventual'"));
    }
    properties.check_known(&["replication", "durable_writes", "tablets", "storage", "consistency"], &[])
}

/// Checks that at most one datacenter changes its factor, by at most 1. As in ScyllaDB, this does
/// not apply to keyspaces without tablets. Nor does it apply to changes from or to SimpleStrategy,
/// which has no tablets there.
fn check_step(before: &OptionMap, after: &OptionMap, hosts: &[Host]) -> Result<(), Error> {
    let racks = placement::racks(hosts);
    let of = |options| Replication::of(options, racks.keys().copied());
    let (Ok(Replication::ByDatacenter(before)), Ok(Replication::ByDatacenter(after))) = (of(before), of(after)) else {
        return Ok(());
    };
    let datacenters: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let factor = |factors: &BTreeMap<String, u32>, name: &String| factors.get(name).copied().unwrap_or(0);
    let mut steps = datacenters.into_iter().map(|name| factor(&before, name).abs_diff(factor(&after, name)));
    match steps.try_fold(0u32, u32::checked_add) {
        Some(0 | 1) => Ok(()),
        _ => Err(Error::invalid("Only one DC's RF can be changed at a time and not by more than 1")),
    }
}

/// How the replicas of a keyspace's tablets change.
enum Replicas {
    MoreOrElsewhere,
    Fewer,
}

/// The listed racks, by datacenter.
type RackSets = BTreeMap<String, BTreeSet<String>>;

/// Whether a change alters the replicas of a keyspace with tables, and how. An error if there are
/// not enough nodes, or another such change is under way. A change that only writes the same
/// replication differently alters none. The replicas of a change that is taken back are fewer.
fn change_of_replicas(
    metadata: &Metadata,
    keyspace: &Keyspace,
    altered: &OptionMap,
    hosts: &[Host],
) -> Result<Option<Replicas>, Error> {
    let racks = placement::racks(hosts);
    let of = |options: &OptionMap| {
        let lists = racks_by_datacenter(options).into_iter().map(|(name, racks)| (name, racks.into_iter().collect()));
        Replication::of(options, racks.keys().copied()).map(|replication| (replication, RackSets::from_iter(lists)))
    };
    let after = of(altered).map_err(|error| Error::Configuration(error.to_string()))?;
    let (before, wanted) = (of(&keyspace.definition.replication), keyspace.wanted_replication.as_ref().map(of));
    let is_same = before.as_ref() == Ok(&after);
    match wanted {
        None if is_same => return Ok(None),
        Some(_) if is_same => return Ok(Some(Replicas::Fewer)),
        Some(wanted) if wanted.as_ref() != Ok(&after) => {
            let name = &keyspace.definition.name;
            return Err(Error::invalid(format!(
                "The replication of keyspace {name} is being changed already: wait for the end, or alter it back"
            )));
        }
        _ => {}
    }
    let (replication, lists) = &after;
    replication
        .check(&allocator::nodes_by_datacenter(hosts))
        .map_err(|error| Error::Configuration(error.to_string()))?;
    let has_as_many = before.as_ref().is_ok_and(|(before, _)| before == replication);
    if has_as_many && keyspace.wanted_replication.is_none() && is_in_place(keyspace, lists, hosts) {
        return Ok(None);
    }
    if !metadata.topology.has_feature(features::FILE_STREAM) {
        let why = "A node of the cluster cannot stream tablets yet: upgrade all nodes first";
        return Err(Error::Configuration(why.to_owned()));
    }
    let is_as_many = before.is_ok_and(|(before, _)| before.total() <= replication.total());
    Ok(Some(if is_as_many { Replicas::MoreOrElsewhere } else { Replicas::Fewer }))
}

/// A warning that there are too few nodes for the replication. A single node accepts any factor,
/// which then applies when nodes join. In a larger cluster, tables cannot be created until there
/// are enough nodes.
fn too_few_nodes(definition: &KeyspaceDefinition, hosts: &[Host]) -> Option<String> {
    if hosts.len() > 1 {
        let replication = Replication::of(&definition.replication, placement::racks(hosts).keys().copied());
        let checked = replication.and_then(|replication| replication.check(&allocator::nodes_by_datacenter(hosts)));
        return checked.err().map(|error| error.to_string());
    }
    let factor = definition.replication_factor();
    (factor > 1).then(|| {
        format!(
            "The replication factor {factor} of keyspace {} is higher than the number of nodes 1: each partition has one replica",
            definition.name
        )
    })
}
