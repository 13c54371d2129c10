-- Take prompts out of the dead letters and put them back on the ledger, due at once.
-- ARGV: dataset, then prompt_id, payload ('' for a turn that its parent will send), …
-- → number taken
local dataset, taken = ARGV[1], 0
for i = 2, #ARGV, 2 do
    local id = ARGV[i]
    if redis.call('HDEL', FAILURES, id) == 1 then
        taken = taken + 1
        add(dataset, 'failed', -1)
        if ARGV[i + 1] ~= '' then
            redis.call('HSET', PROMPTS, id, dataset .. '\n' .. ARGV[i + 1])
            redis.call('ZADD', WAITING, NOW, id)
        end
    end
end
return taken
