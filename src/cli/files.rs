//! Checks the files and folders that the settings name, before a start would fail to find them.

use std::path::Path;

use crate::{
    config::{Config, DatabaseUrl},
    listener::{Files, Tls},
    store::postgres,
};

/// Returns the faults of the files and folders that a start with these settings would need.
pub fn faults(config: &Config) -> Vec<String> {
    let mut faults = Vec::new();
    if let DatabaseUrl::Sqlite(path) = &config.database_url {
        let folder = match path.parent() {
            None => Path::new("/"),
            Some(here) if here.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
        };
        let found = std::fs::metadata(folder);
        let folder = folder.display();
        match found {
            Ok(found) if found.is_dir() => {}
            Ok(_) => faults.push(format!("database_url: {folder} is not a folder")),
            Err(error) => faults.push(format!(
                "database_url: the folder {folder}: {error}; create it, or choose another"
            )),
        }
    }
    if let DatabaseUrl::Postgres(url) = &config.database_url
        && let Some(fault) = postgres::fault_of_files(url)
    {
        faults.push(format!("database_url: {fault}"));
    }
    if let (Some(certificate), Some(key)) = (&config.tls.certificate, &config.tls.key) {
        let files = Files {
            certificate: certificate.clone(),
            key: key.clone(),
        };
        if let Err(error) = Tls::read(files) {
            faults.push(error.to_string());
        }
    }
    faults
}
