-- Votes, predictions, audit links, guidelines, rules and feedback are never changed or removed.

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$;

CREATE TRIGGER votes_refuse_change
    BEFORE UPDATE OR DELETE OR TRUNCATE ON votes
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER predictions_refuse_change
    BEFORE UPDATE OR DELETE OR TRUNCATE ON predictions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_refuse_change
    BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER guidelines_refuse_change
    BEFORE UPDATE OR DELETE OR TRUNCATE ON guidelines
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER annotation_rules_refuse_change
    BEFORE UPDATE OR DELETE OR TRUNCATE ON annotation_rules
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER feedback_refuse_change
    BEFORE UPDATE OR DELETE OR TRUNCATE ON feedback
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

COMMENT ON COLUMN requests.status IS 'of the answer; missing while it is being made';
COMMENT ON COLUMN generation_attempts.wait_s IS 'that the provider asked for';
COMMENT ON COLUMN generation_attempts.partial IS 'text of a stream that broke';
COMMENT ON COLUMN generation_items.is_cached IS 'succeeded without a call of its own';
COMMENT ON COLUMN generation_items.n_faults IS 'attempts that count against the item';
COMMENT ON COLUMN predictions.is_replayed
    IS 'written after the votes, by a model that had seen none of them';
COMMENT ON COLUMN slots.annotator_id IS 'who alone is asked; missing = anybody';
COMMENT ON COLUMN votes.pass_no IS '1 first judgement, 2 repeat pass, …';
COMMENT ON COLUMN votes.revision_no IS '0 as cast, +1 by each superseding vote';
COMMENT ON COLUMN votes.displaced_day IS 'day of the vote it made not count';
COMMENT ON COLUMN votes.is_swapped IS 'completion b was shown on the left';
