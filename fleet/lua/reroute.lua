-- An attempt under a claim failed and another is to follow: say what it was, and where to go next.
-- ARGV: prompt_id, fence, hop, lease ms, verdict, Retry-After ms, endpoint named by the failure
--       ('' for none), kind, message, '1' to go at once (elsewhere) or '0' to wait first
-- → {'ok', nano-USD reserved, tag, provider, prices}, or {why not, ms until it may change}
local id, fence, hop, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local c = claim_of(id)
if not c or c.fence ~= fence then return {'lost', 0} end

local function granted()
    local e = redis.call('HMGET', ENDPOINTS, c.tag .. '|provider', c.tag .. '|prompt_price', c.tag .. '|completion_price')
    return {'ok', int(c.reserved), c.tag, e[1] or '', e[2] or '0', e[3] or '0'}
end
local left = c.tag
if c.hop == hop then
    if left ~= '' then
        add_at(left, 'in_flight', -1)
        judge(left, c.sent, ARGV[5], tonumber(ARGV[6]))
        count_failure(ARGV[7] ~= '' and ARGV[7] or left, ARGV[5], ARGV[8], ARGV[9])
    end
    c.tag, c.hop = '', hop + 1
    write_claim(id, c)
elseif left ~= '' then
    return granted() -- the reply to this very call was lost with its connection
end
redis.call('ZADD', CLAIMS, NOW + lease, id)
if ARGV[10] == '0' then return {'wait', 0} end
if paused() then return {'paused', 0} end
local e, wait = choose(left)
if not e then return {'no endpoint free', wait} end
local record = redis.call('HGET', PROMPTS, id)
if not record then return {'lost', 0} end
local _, tokens = sizes(counters(c.dataset))
local reserved, most = prices(e, #record - #c.dataset - 1, tokens)
local limit = breaks(most - c.most)
if limit then return {limit, FULL_WAIT_MS} end
take(e)
add_run('reserved', reserved - c.reserved)
add_run('reserved_most', most - c.most)
c.tag, c.sent, c.reserved, c.most = e.tag, NOW, reserved, most
write_claim(id, c)
return granted()
