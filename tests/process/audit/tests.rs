//! One small ledger and record for each finding.
