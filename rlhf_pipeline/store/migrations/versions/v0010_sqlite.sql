-- Votes, predictions, audit links, guidelines, rules and feedback are never changed or removed.

CREATE TRIGGER votes_refuse_update BEFORE UPDATE ON votes BEGIN
    SELECT RAISE(ABORT, 'votes is append-only'); END;
CREATE TRIGGER votes_refuse_delete BEFORE DELETE ON votes BEGIN
    SELECT RAISE(ABORT, 'votes is append-only'); END;
CREATE TRIGGER predictions_refuse_update BEFORE UPDATE ON predictions BEGIN
    SELECT RAISE(ABORT, 'predictions is append-only'); END;
CREATE TRIGGER predictions_refuse_delete BEFORE DELETE ON predictions BEGIN
    SELECT RAISE(ABORT, 'predictions is append-only'); END;
CREATE TRIGGER audit_refuse_update BEFORE UPDATE ON audit BEGIN
    SELECT RAISE(ABORT, 'audit is append-only'); END;
CREATE TRIGGER audit_refuse_delete BEFORE DELETE ON audit BEGIN
    SELECT RAISE(ABORT, 'audit is append-only'); END;
CREATE TRIGGER guidelines_refuse_update BEFORE UPDATE ON guidelines BEGIN
    SELECT RAISE(ABORT, 'guidelines is append-only'); END;
CREATE TRIGGER guidelines_refuse_delete BEFORE DELETE ON guidelines BEGIN
    SELECT RAISE(ABORT, 'guidelines is append-only'); END;
CREATE TRIGGER annotation_rules_refuse_update BEFORE UPDATE ON annotation_rules BEGIN
    SELECT RAISE(ABORT, 'annotation_rules is append-only'); END;
CREATE TRIGGER annotation_rules_refuse_delete BEFORE DELETE ON annotation_rules BEGIN
    SELECT RAISE(ABORT, 'annotation_rules is append-only'); END;
CREATE TRIGGER feedback_refuse_update BEFORE UPDATE ON feedback BEGIN
    SELECT RAISE(ABORT, 'feedback is append-only'); END;
CREATE TRIGGER feedback_refuse_delete BEFORE DELETE ON feedback BEGIN
    SELECT RAISE(ABORT, 'feedback is append-only'); END;

-- How the rows of each index are spread: rows in all, then rows that share the first column, the
-- first two, and so on. Every index begins with organization and project. Without these statistics
-- SQLite takes each such equality for selective, prefers any index with a range on top, and reads a
-- day's votes by scanning all votes. Postgres measures for itself.

ANALYZE;
INSERT INTO sqlite_stat1 (tbl, idx, stat)
SELECT column1, column2, '1000000 1000000 ' || column3 FROM (VALUES
    ('annotation_rules', 'sqlite_autoindex_annotation_rules_1', '1000000 1'),
    ('assignments', 'ix_assignments_annotator', '1000000 3000 1'),
    ('assignments', 'ix_assignments_state', '1000000 3000 50 1'),
    ('assignments', 'sqlite_autoindex_assignments_1', '1000000 1'),
    ('assignments', 'sqlite_autoindex_assignments_2', '1000000 5 1 1'),
    ('audit', 'sqlite_autoindex_audit_1', '1000000 1'),
    ('calibrations', 'sqlite_autoindex_calibrations_1', '1000000 1 1'),
    ('comparisons', 'ix_comparisons_category', '1000000 100000 1000 1 1'),
    ('comparisons', 'ix_comparisons_day', '1000000 3000 1 1'),
    ('comparisons', 'ix_comparisons_gold', '1000000 3000 1 1'),
    ('comparisons', 'ix_comparisons_pair_key', '1000000 1'),
    ('comparisons', 'ix_comparisons_prompt', '1000000 1 1 1'),
    ('comparisons', 'ix_comparisons_source_pair_id', '1000000 1'),
    ('comparisons', 'sqlite_autoindex_comparisons_1', '1000000 1'),
    ('completion_cache', 'sqlite_autoindex_completion_cache_1', '1000000 1'),
    ('decisions', 'ix_decisions_state', '1000000 50'),
    ('decisions', 'sqlite_autoindex_decisions_1', '1000000 1'),
    ('detector_states', 'sqlite_autoindex_detector_states_1', '1000000 50 1 1'),
    ('drift_events', 'ix_drift_events_day', '1000000 3000'),
    ('drift_events', 'ix_drift_events_decision', '1000000 1'),
    ('drift_events', 'sqlite_autoindex_drift_events_1', '1000000 1'),
    ('drift_events', 'sqlite_autoindex_drift_events_2', '1000000 50 1 1 1 1'),
    ('failed_logins', 'sqlite_autoindex_failed_logins_1', '1000000 1'),
    ('feedback', 'ix_feedback_session', '1000000 1 1'),
    ('feedback', 'sqlite_autoindex_feedback_1', '1000000 1'),
    ('gates', 'sqlite_autoindex_gates_1', '1000000 1'),
    ('generation_attempts', 'sqlite_autoindex_generation_attempts_1', '1000000 3000 2 1'),
    ('generation_items', 'ix_generation_items_leased', '1000000 1'),
    ('generation_items', 'ix_generation_items_to_do', '1000000 3000 3000 3000 1'),
    ('generation_items', 'sqlite_autoindex_generation_items_1', '1000000 3000 1'),
    ('generation_runs', 'sqlite_autoindex_generation_runs_1', '1000000 1'),
    ('generation_spending', 'ix_generation_spending_day', '1000000 30'),
    ('generation_spending', 'ix_generation_spending_provider', '1000000 300'),
    ('generation_spending', 'sqlite_autoindex_generation_spending_1', '1000000 3 2 2 1'),
    ('guidelines', 'sqlite_autoindex_guidelines_1', '1000000 1'),
    ('heads', 'sqlite_autoindex_heads_1', '1'),
    ('heartbeats', 'sqlite_autoindex_heartbeats_1', '1000000 1'),
    ('idempotency', 'sqlite_autoindex_idempotency_1', '1000000 1'),
    ('imports', 'sqlite_autoindex_imports_1', '1000000 1'),
    ('predictions', 'ix_predictions_day', '1000000 3000'),
    ('predictions', 'sqlite_autoindex_predictions_1', '1000000 5 1'),
    ('promotions', 'ix_promotions_model', '1000000 50 1'),
    ('promotions', 'sqlite_autoindex_promotions_1', '1000000 1'),
    ('replays', 'sqlite_autoindex_replays_1', '1000000 1'),
    ('requests', 'ix_requests_expires_at', '1000000 1'),
    ('requests', 'sqlite_autoindex_requests_1', '1000000 1 1'),
    ('role_grants', 'sqlite_autoindex_role_grants_1', '1000000 1 1'),
    ('slots', 'ix_slots_named', '1000000 1 1 1 1'),
    ('slots', 'ix_slots_to_do', '1000000 1 1 1'),
    ('slots', 'sqlite_autoindex_slots_1', '1000000 5 1'),
    ('tokens', 'ix_tokens_user', '1000000 1'),
    ('tokens', 'sqlite_autoindex_tokens_1', '1000000 1'),
    ('users', 'sqlite_autoindex_users_1', '1000000 1'),
    ('users', 'sqlite_autoindex_users_2', '1000000 1'),
    ('votes', 'ix_votes_annotator', '1000000 3000 1'),
    ('votes', 'ix_votes_day', '1000000 3000 1'),
    ('votes', 'ix_votes_displaced_day', '1000000 300 1'),
    ('votes', 'sqlite_autoindex_votes_1', '1000000 1'),
    ('votes', 'sqlite_autoindex_votes_2', '1000000 1'),
    ('votes', 'sqlite_autoindex_votes_3', '1000000 1'),
    ('votes', 'sqlite_autoindex_votes_4', '1000000 5 1 1 1')
);
