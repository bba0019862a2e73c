//! Options with their own syntax: `caching`, `speculative_retry`, `tombstone_gc`, `cdc` and
//! `tablets`.

use super::properties::{Properties, boolean};
use crate::error::Error;
use crate::syntax::ast::OptionValue;
use model::options::OptionMap;

fn refused(message: impl Into<String>) -> Error {
    Error::Configuration(message.into())
}

/// `caching`: a map, or a string with a map in JSON. The result always has `keys` and
/// `rows_per_partition`.
pub fn caching(properties: &Properties) -> Result<Option<OptionMap>, Error> {
    let written = match properties.value("caching") {
        None => return Ok(None),
        Some(OptionValue::Literal(literal)) => {
            let text = literal.text();
            let wrong = |_| refused(format!("Invalid caching options: {text}"));
            serde_json::from_str::<OptionMap>(&text).map_err(wrong)?
        }
        Some(_) => properties.map("caching")?.unwrap_or_default(),
    };
    if written.is_empty() {
        return Ok(None);
    }
    let mut out = OptionMap::from([("keys", "ALL"), ("rows_per_partition", "ALL")].map(|(k, v)| (k.into(), v.into())));
    for (name, value) in written {
        let stored = match (name.as_str(), value.to_uppercase().as_str()) {
            ("keys" | "rows_per_partition", upper @ ("ALL" | "NONE")) => upper.to_owned(),
            ("rows_per_partition", number) if number.parse::<u32>().is_ok() => number.to_owned(),
            ("enabled", upper @ ("TRUE" | "FALSE")) => upper.to_lowercase(),
            ("keys" | "rows_per_partition" | "enabled", _) => {
                return Err(refused(format!("Invalid value {value} for the caching option '{name}'")));
            }
            _ => return Err(refused(format!("Invalid caching option: {name}"))),
        };
        out.insert(name, stored);
    }
    if out.get("enabled").is_some_and(|enabled| enabled == "true") {
        out.remove("enabled");
    }
    Ok(Some(out))
}

/// `speculative_retry`: NONE, ALWAYS, a percentile, or milliseconds.
pub fn speculative_retry(written: &str) -> Result<String, Error> {
    let upper = written.trim().to_uppercase();
    let wrong = || refused(format!("Invalid value {written} for option 'speculative_retry'"));
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(wrong);
    if upper == "NONE" || upper == "NEVER" {
        return Ok("NONE".to_owned());
    }
    if upper == "ALWAYS" {
        return Ok(upper);
    }
    if let Some(time) = upper.strip_suffix("MS") {
        let time = number(time)?;
        return if time >= 0.0 { Ok(format!("{time:.2}ms")) } else { Err(wrong()) };
    }
    let percentile = upper.strip_suffix("PERCENTILE").or_else(|| upper.strip_suffix('P')).ok_or_else(wrong)?;
    let percentile = number(percentile)?;
    if !(0.0..=100.0).contains(&percentile) {
        return Err(wrong());
    }
    Ok(format!("{percentile:?}PERCENTILE"))
}

/// `tombstone_gc`: when tombstones may be purged. The result always has both of its options.
pub fn tombstone_gc(written: OptionMap, warnings: &mut Vec<String>) -> Result<OptionMap, Error> {
    let mut out = OptionMap::from(
        [("mode", "timeout"), ("propagation_delay_in_seconds", "3600")].map(|(k, v)| (k.into(), v.into())),
    );
    for (name, value) in written {
        match name.as_str() {
            "mode" if ["timeout", "repair", "immediate", "disabled"].contains(&value.as_str()) => {}
            "mode" => return Err(refused(format!("Invalid value for tombstone_gc option mode: {value}"))),
            "propagation_delay_in_seconds" if value.parse::<u32>().is_ok_and(|delay| delay <= i32::MAX as u32) => {}
            "propagation_delay_in_seconds" => {
                return Err(refused(format!(
                    "Invalid value for tombstone_gc option propagation_delay_in_seconds: {value}"
                )));
            }
            _ => return Err(refused(format!("Invalid tombstone_gc option: {name}"))),
        }
        out.insert(name, value);
    }
    if out["mode"] == "repair" {
        warnings.push("Repair is not supported yet: tombstone_gc mode 'repair' means 'timeout' until it is".to_owned());
    }
    Ok(out)
}

/// `cdc`: a map, or a boolean as in Cassandra. Refused if it enables CDC.
pub fn cdc(properties: &Properties) -> Result<Option<OptionMap>, Error> {
    let written = match properties.value("cdc") {
        None => return Ok(None),
        Some(OptionValue::Literal(literal)) => OptionMap::from([("enabled".to_owned(), literal.text().into_owned())]),
        Some(_) => properties.map("cdc")?.unwrap_or_default(),
    };
    for (name, value) in &written {
        match name.as_str() {
            "enabled" => {
                if boolean(name, value)? {
                    return Err(Error::not_supported("change data capture (cdc)"));
                }
            }
            "postimage" => {
                boolean(name, value)?;
            }
            "preimage" if value.eq_ignore_ascii_case("full") => {}
            "preimage" => {
                boolean(name, value)?;
            }
            "delta" if ["keys", "full"].contains(&value.to_lowercase().as_str()) => {}
            "delta" => return Err(refused(format!("Invalid value for CDC option \"delta\": {value}"))),
            "ttl" if value.parse::<i32>().is_ok_and(|ttl| ttl >= 0) => {}
            "ttl" => return Err(refused(format!("Invalid value for CDC option \"ttl\": {value}"))),
            _ => return Err(refused(format!("Invalid CDC option: {name}"))),
        }
    }
    Ok(Some(OptionMap::new()))
}

/// `tablets`: hints for the number of tablets.
pub fn tablets(written: OptionMap) -> Result<OptionMap, Error> {
    let wrong = |name: &str, value: &str| refused(format!("Invalid value {value} for the tablet hint {name}"));
    for (name, value) in &written {
        let right = match name.as_str() {
            "min_tablet_count" | "max_tablet_count" => value.parse::<u32>().is_ok(),
            "expected_data_size_in_gb" | "min_per_shard_tablet_count" => {
                value.parse::<f64>().is_ok_and(|number| number.is_finite() && number >= 0.0)
            }
            "pow2_count" => boolean(name, value).is_ok(),
            _ => return Err(refused(format!("Unknown tablet hint: {name}"))),
        };
        if !right {
            return Err(wrong(name, value));
        }
    }
    let count = |name: &str| written.get(name).and_then(|value| value.parse::<u32>().ok()).filter(|count| *count > 0);
    if let (Some(least), Some(most)) = (count("min_tablet_count"), count("max_tablet_count"))
        && least > most
    {
        return Err(refused(format!("min_tablet_count {least} is greater than max_tablet_count {most}")));
    }
    Ok(written)
}
