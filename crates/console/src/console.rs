//! The state that every page can access.

use std::sync::Arc;

use crate::{confirmations::Confirmations, service::Service, session::SessionStore};

pub struct Console {
    pub service: Arc<dyn Service>,
    pub sessions: Arc<dyn SessionStore>,
    pub confirmations: Confirmations,
}
